"""The content of a run's stored events, from which `recorder` makes a recording."""

from __future__ import annotations

from dataclasses import dataclass, field

from strata.agent_loop.domain.conversation.messages import Message
from strata.agent_loop.domain.model.chat import Usage
from strata.agent_loop.domain.run.request_digest import RequestDigest, SystemChange
from strata.agent_loop.domain.tools import MemoryEdit
from strata.agent_loop.replay.recording import RecordedEnd, RecordedTurn


@dataclass(frozen=True, slots=True)
class ModelCallEvidence:
    """A finished model call.

    Attributes:
        message_id: Id of the message of the reply; a separate id for a summary.
        digest: Identifies the request; None for a summary, and in runs of older releases.
        lost: The reply never ended.
    """

    message_id: str
    model: str
    start_ms: int
    usage: Usage
    digest: RequestDigest | None
    lost: bool = False


@dataclass(slots=True)
class StepEvidence:
    """A step in the events; a later attempt of a lost step has another message id.

    Attributes:
        restarts: Reasons why the model was asked again, in order.
        failed_over: A fallback model was asked.
    """

    number: int
    step_id: str
    message_id: str
    model: str
    restarts: list[str] = field(default_factory=list)
    failed_over: bool = False


@dataclass(slots=True)
class Evidence:
    """The content of the stored events of a run.

    Attributes:
        turn: The request of the run.
        attempts: Number of dispatches that began.
        input_ids: Ids of the inputs.
        steps: Steps that began, in order.
        calls: Model calls, in order.
        last_sequence: Sequence of the last stored message; 0 if none is known.
        started: Name and arguments of the tool calls that began, by id.
        finished: Edits and duration of the tool calls that ended, by id.
        summaries: Summaries, by the number of the step whose request they precede.
        end: How the run ended; None if it has not ended.
        changes: Changes of the system message in later runs, newest first: the digest of the new
            text, and the change.
    """

    turn: RecordedTurn
    attempts: int = 1
    input_ids: list[str] = field(default_factory=list)
    steps: list[StepEvidence] = field(default_factory=list)
    calls: list[ModelCallEvidence] = field(default_factory=list)
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
