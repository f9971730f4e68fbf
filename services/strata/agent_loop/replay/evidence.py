"""What is stored of a run: from it, and from what the services have now, a recording is made."""

from __future__ import annotations

from dataclasses import dataclass, field

from strata.agent_loop.domain.messages import Message
from strata.agent_loop.domain.request_digest import RequestDigest, SystemChange
from strata.agent_loop.domain.tools import MemoryEdit
from strata.agent_loop.models.domain import Usage
from strata.agent_loop.replay.recording import AskedTurn, RecordedEnd


@dataclass(frozen=True, slots=True)
class ModelCalled:
    """A call of a model that has ended.

    Attributes:
        message_id: Id of the message of the reply; a summary has one of its own.
        digest: Names what was sent; None for a summary, and in runs of older releases.
        lost: Its reply never ended.
    """

    message_id: str
    model: str
    start_ms: int
    usage: Usage
    digest: RequestDigest | None
    lost: bool = False


@dataclass(slots=True)
class StepSeen:
    """A step as the events tell of it; a later attempt of a lost step has another message id.

    Attributes:
        restarts: Why the model was asked again, in order.
        failed_over: Another model was asked.
    """

    number: int
    step_id: str
    message_id: str
    model: str
    restarts: list[str] = field(default_factory=list)
    failed_over: bool = False


@dataclass(slots=True)
class Evidence:
    """What the stored events of a run tell.

    Attributes:
        turn: What was asked for.
        attempts: Number of dispatches that began.
        input_ids: Ids of the inputs.
        steps: Steps that began, in order.
        calls: Calls of models, in order.
        stored: Ids of the messages that were stored, hidden ones left out, and the last sequence.
        started: Name and arguments of the tool calls that began, by id.
        finished: Edits and duration of those that ended, by id.
        summaries: Summaries, by the number of the step before whose request they were made.
        end: How the run ended; None if it has not.
        changes: Changes of the system message: digest of the text after each, and the change;
            those of later runs first, newest first.
    """

    turn: AskedTurn
    attempts: int = 1
    input_ids: list[str] = field(default_factory=list)
    steps: list[StepSeen] = field(default_factory=list)
    calls: list[ModelCalled] = field(default_factory=list)
    last_sequence: int = 0
    started: dict[str, tuple[str, str]] = field(default_factory=dict)
    finished: dict[str, tuple[tuple[MemoryEdit, ...], int]] = field(default_factory=dict)
    summaries: dict[int, list[Message]] = field(default_factory=dict)
    end: RecordedEnd | None = None
    changes: list[tuple[bytes, SystemChange]] = field(default_factory=list)

    @property
    def all_changes(self) -> list[tuple[bytes, SystemChange]]:
        """All known changes of the system message, newest first."""
        own = [
            (call.digest.system, call.digest.change)
            for call in self.calls
            if call.digest is not None and call.digest.change is not None
        ]
        return [*self.changes, *reversed(own)]
