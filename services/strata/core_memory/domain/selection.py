"""A selection of edits, in one block or in several."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Selection:
    """Selects the edits that match all fields that are set.

    Attributes:
        block_id: Of this block.
        run_id: Made by this run.
        agent_id: Made by this agent.
        since: Made at this time or later.
    """

    block_id: str = ""
    run_id: str = ""
    agent_id: str = ""
    since: datetime | None = None
