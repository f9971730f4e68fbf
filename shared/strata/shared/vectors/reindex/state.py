"""What serves, and how far a rebuild is. PostgreSQL holds both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from strata.shared.vectors.index import Collection


class Phase(StrEnum):
    """Where a reindex stands.

    ``building``: both collections are written, and the new one is filled from PostgreSQL.
    ``checking``: it is full; both are asked for the same texts.
    ``switched``: the new one serves, both are still written, and one can go back.
    The others are ends: ``finished`` drops the old collection; ``rolled_back``, ``failed`` and
    ``cancelled`` drop the new one.
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
        """Whether the new collection is the one that is asked."""
        return self in (Phase.SWITCHED, Phase.FINISHED)


@dataclass(frozen=True, slots=True)
class Serving:
    """The generation that answers, and the model of its vectors.

    Attributes:
        slot: What it stands for; see `slot_of`.
        generation: Name of the collection in the engine.
        model: Id of the embedding model.
        dim: Components of its vectors.
        normalized: Whether its vectors have length 1.
    """

    slot: str
    generation: str
    model: str
    dim: int
    normalized: bool = True


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """How far a new collection is filled.

    Attributes:
        cursor: The last key that is in it; empty at the start.
        done: Documents that were copied.
        sample: Some of their keys (project and id), evenly drawn.
    """

    cursor: tuple[str, ...] = ()
    done: int = 0
    sample: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class FoundCounts:
    """What the check found: of ``asked`` texts so many were found again in each collection."""

    asked: int = 0
    old: int = 0
    new: int = 0


@dataclass(frozen=True, slots=True)
class Reindex:
    """A rebuild of a collection, or of one archive in it.

    Attributes:
        id: Its id.
        slot: What is rebuilt.
        project_id: The project of the archive; empty for a whole collection.
        archive_id: The archive; empty for a whole collection.
        source: What serves until the switch.
        target: What is built.
        phase: Where it stands.
        progress: How far the copy is.
        total: Documents to copy, as counted at the start.
        share: What the check found.
        note: Why it failed.
        cleaned: Whether what it left over is gone.
        create_time: When it began.
        phase_time: When it came into this phase.
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
        """The one that is asked."""
        return self.target if self.phase.new_serves else self.source

    @property
    def other(self) -> Serving:
        """The one that is not."""
        return self.source if self.phase.new_serves else self.target


@dataclass(frozen=True, slots=True)
class ReindexConfig:
    """How rebuilds are made.

    Attributes:
        batch: Texts embedded at a time.
        sample: Stored texts of the check.
        share: Part of what the old collection finds that the new one has to find.
        grace: Seconds for which a replaced collection is kept up.
        patience: Seconds after which a rebuild whose model or engine does not answer fails.
    """

    batch: int = 32
    sample: int = 64
    share: float = 0.95
    grace: float = 86_400.0
    patience: float = 900.0


def slot_of(collection: Collection, model: str = "") -> str:
    """Returns the name under which PostgreSQL knows what serves.

    Args:
        collection: The collection.
        model: For a collection with one generation per model, the model.
    """
    return f"{collection.name}:{model}" if model else collection.name
