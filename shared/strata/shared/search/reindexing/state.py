"""The state and progress of a rebuild."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from strata.shared.search.indexing.generations import Serving


class Phase(StrEnum):
    """The phase of a rebuild.

    ``building``: both collections are written, and the new one is filled from PostgreSQL.
    ``checking``: the new one is complete; both are searched for the same texts.
    ``switched``: the new one serves, both are still written, and a rollback is possible.
    The other phases are final: ``finished`` drops the old collection; ``rolled_back``, ``failed``
    and ``cancelled`` drop the new one.
    """

    BUILDING = "building"
    CHECKING = "checking"
    SWITCHED = "switched"
    FINISHED = "finished"
    ROLLED_BACK = "rolled_back"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_active(self) -> bool:
        """Whether both collections are written."""
        return self in (Phase.BUILDING, Phase.CHECKING, Phase.SWITCHED)

    @property
    def new_serves(self) -> bool:
        """Whether searches use the new collection."""
        return self in (Phase.SWITCHED, Phase.FINISHED)


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """The progress of copying documents to a new collection.

    Attributes:
        cursor: The last key that was copied; empty at the start.
        done: Documents that were copied.
        sample: Keys (project and id) of a uniform random sample of them.
    """

    cursor: tuple[str, ...] = ()
    done: int = 0
    sample: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class FoundCounts:
    """The result of the check: how many of ``asked`` texts each collection found."""

    asked: int = 0
    old: int = 0
    new: int = 0


@dataclass(frozen=True, slots=True)
class Reindex:
    """A rebuild of a collection, or of one archive in it.

    Attributes:
        id: Its id.
        slot: The index that is rebuilt.
        project_id: The project of the archive; empty for a whole collection.
        archive_id: The archive; empty for a whole collection.
        source: The generation that serves until the switch.
        target: The generation that is built.
        phase: The current phase.
        progress: Progress of the copy.
        total: Documents to copy, as counted at the start.
        share: The result of the check.
        note: Why it failed.
        cleaned: Whether the unneeded generation has been removed.
        create_time: When it was started.
        phase_time: When it entered the current phase.
    """

    id: str
    slot: str
    project_id: str
    archive_id: str
    source: Serving
    target: Serving
    phase: Phase
    create_time: datetime
    phase_time: datetime
    progress: CopyProgress = field(default_factory=CopyProgress)
    total: int = 0
    share: FoundCounts = field(default_factory=FoundCounts)
    note: str = ""
    cleaned: bool = False

    @property
    def serving(self) -> Serving:
        """The generation that serves."""
        return self.target if self.phase.new_serves else self.source

    @property
    def other(self) -> Serving:
        """The generation that does not serve."""
        return self.source if self.phase.new_serves else self.target


@dataclass(frozen=True, slots=True)
class ReindexConfig:
    """The configuration of rebuilds.

    Attributes:
        grace: Seconds for which a replaced collection is kept up to date.
        batch: Texts embedded at a time: one request of an endpoint, between new texts.
        sample: Number of stored texts in the check: few enough for some seconds of searches.
        share: Share of the old collection's finds that the new one has to find. Less than all,
            because approximate searches of two collections differ by some results.
        patience: Seconds after which a rebuild fails if its model or engine does not answer.
    """

    grace: float
    batch: int = 32
    sample: int = 64
    share: float = 0.95
    patience: float = 900.0
