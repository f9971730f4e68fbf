"""How far a replay has come in its recording, and what ends it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from strata.agent_loop.domain.runs import RunOutcome, StopReason
from strata.agent_loop.loop.ports import MemorySection
from strata.agent_loop.replay.differences import Difference, DifferenceFoundError
from strata.agent_loop.replay.recording import (
    RecordedStep,
    Recording,
    RequestText,
    SentRequest,
)

DECIDED = frozenset(
    {
        StopReason.END_TURN,
        StopReason.MAX_STEPS,
        StopReason.TOOL_RULE,
        StopReason.NO_TOOL_CALL,
        StopReason.REQUIRES_APPROVAL,
        StopReason.NO_PROGRESS,
        StopReason.INVALID_TOOL_CALL,
        StopReason.MAX_TOKENS_EXCEEDED,
        StopReason.CONTEXT_WINDOW_OVERFLOW_IN_SYSTEM_PROMPT,
    }
)
"""Ends that follow from what a run received; all others came from outside."""


class EndOfRecordingError(Exception):
    """Ends a replay where the recorded run was ended from outside."""


@dataclass
class Script:
    """How far a replay has come.

    Attributes:
        recording: What is replayed.
        done: Steps that were stored.
        captured: The requests of this build, in canonical form, one for each request of the
            recording.
        compares: Whether requests are compared with what the recording has of them.
        outcome: How the run ended.
        summarised: Summaries of the step under way that were used.
        refused: Requests of it that were refused.
        known: Every text of the captured requests, once.
    """

    recording: Recording
    compares: bool = True
    done: int = 0
    captured: list[RequestText] = field(default_factory=list)
    outcome: RunOutcome | None = None
    summarised: int = 0
    refused: int = 0
    known: dict[str, str] = field(default_factory=dict)

    @property
    def step(self) -> RecordedStep | None:
        """The step under way; None after the last one."""
        steps = self.recording.steps
        return steps[self.done] if self.done < len(steps) else None

    @property
    def request(self) -> SentRequest | None:
        """The request that comes next, or came last."""
        steps = self.recording.steps
        coming = [step.request for step in steps[self.done :] if step.request is not None]
        before = [step.request for step in steps[: self.done] if step.request is not None]
        return coming[0] if coming else before[-1] if before else None

    @property
    def section(self) -> MemorySection:
        """Core memory as the next request showed it, or else the last one."""
        steps = self.recording.steps
        coming = [step for step in steps[self.done :] if step.request is not None]
        before = [step for step in steps[: self.done] if step.request is not None]
        if not (coming or before):
            return MemorySection("", None)
        shown = (coming[0] if coming else before[-1]).memory
        return MemorySection(
            shown.section,
            shown.last_modified,
            has_folders=shown.has_folders,
            taint={"memory": shown.taint} if shown.taint else {},
        )

    @property
    def now(self) -> datetime:
        """The time of the request that comes next."""
        request = self.request
        start_ms = 0 if request is None else request.start_ms
        return self.recording.turn.accept_time + timedelta(milliseconds=start_ms)

    def shared(self, text: RequestText) -> RequestText:
        """Returns a request whose texts are those of earlier requests where they are equal.

        The requests of a run have most of their messages in common: kept apart, a long run with a
        large window would take hundreds of megabytes.
        """

        def one(part: str | None) -> str | None:
            return None if part is None else self.known.setdefault(part, part)

        messages = text.messages
        if messages is not None:
            messages = tuple(self.known.setdefault(message, message) for message in messages)
        return RequestText(one(text.system), one(text.options), messages)

    def path(self, what: str) -> str:
        """Returns the path of a part of the step under way."""
        return f"steps[{self.done}].{what}"

    def differs(self, what: str, summary: str, recorded: str = "", replayed: str = "") -> None:
        """Ends the replay with a difference.

        Raises:
            DifferenceFoundError: Always.
        """
        raise DifferenceFoundError(Difference(self.path(what), summary, recorded, replayed))

    def check(self, difference: Difference | None) -> None:
        """Ends the replay if there is a difference.

        Raises:
            DifferenceFoundError: There is one.
        """
        if difference is not None:
            raise DifferenceFoundError(difference)

    def ended(self, what: str) -> EndOfRecordingError:
        """Returns what ends the replay behind the last step.

        Raises:
            DifferenceFoundError: The recorded run had ended by itself.
        """
        stop = self.recording.end.stop_reason
        if stop in DECIDED:
            self.differs(
                "request",
                f"This build {what}; the recorded run had ended.",
                f"end of the run: {stop.value}",
            )
        return EndOfRecordingError()
