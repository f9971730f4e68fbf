"""Reads the counts of archival memory for the metadata of the system message."""

from __future__ import annotations

from strata.agent_loop.domain.ports import Archival, ArchivalStats
from strata.protocol.errors import (
    DeadlineExceededError,
    ResourceExhaustedError,
    UnavailableError,
    UnimplementedError,
)
from strata.shared.logs import get_logger

_log = get_logger(__name__)


async def read_counts(archival: Archival, agent_id: str) -> ArchivalStats | None:
    """Returns the counts of an agent's archival memory; None if it cannot be reached.

    A turn does not fail for missing counts.
    """
    try:
        return await archival.stats(agent_id)
    except (
        DeadlineExceededError,
        ResourceExhaustedError,
        UnavailableError,
        UnimplementedError,
    ) as error:
        _log.warning("archival counts cannot be read", agent_id=agent_id, error=repr(error))
        return None
