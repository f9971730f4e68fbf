"""The dependencies of a turn, in one value."""

from __future__ import annotations

from dataclasses import dataclass, field

from strata.agent_loop.domain.ports import (
    Agents,
    Archival,
    ImageFetcher,
    Journal,
    Memory,
    Models,
    Recall,
    Tools,
)
from strata.agent_loop.loop.image_verdicts import ImageVerdicts
from strata.agent_loop.loop.priority import TurnWork
from strata.agent_loop.models.tokens import TokenEstimator
from strata.shared.clock import Clock
from strata.shared.fair_slots import slots_of_short_work
from strata.shared.project_use import USE_OF_PROCESS
from strata.shared.telemetry import Telemetry

DEFAULT_APPROVAL_S = 24 * 3600
_PARTS_AT_ONCE = 64


def _turn_work() -> TurnWork:
    return TurnWork(slots_of_short_work(_PARTS_AT_ONCE, "parts of turns", USE_OF_PROCESS))


@dataclass(frozen=True, slots=True)
class Ports:
    """The services, stores and models that a turn uses.

    Attributes:
        approval_s: Seconds until an approval request expires, if no rule sets a timeout.
        images: Fetches images that clients name by URL; None if this server must not.
        image_verdicts: The images that providers have accepted or refused.
        work: Slots for the parts of turns that use this machine's processors: shared fairly by
            project, memory agents last. No slot is held while a turn waits for its model or
            tools.
        telemetry: Registry of the metrics.
    """

    agents: Agents
    memory: Memory
    recall: Recall
    tools: Tools
    archival: Archival
    journal: Journal
    models: Models
    tokens: TokenEstimator
    clock: Clock
    approval_s: int = DEFAULT_APPROVAL_S
    images: ImageFetcher | None = None
    image_verdicts: ImageVerdicts = field(default_factory=ImageVerdicts)
    work: TurnWork = field(default_factory=_turn_work)
    telemetry: Telemetry = field(default_factory=Telemetry)
