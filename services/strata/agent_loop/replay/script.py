"""The state of a replay, and the exceptions that end it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from strata.agent_loop.domain.ports import MemorySection
from strata.agent_loop.domain.run.runs import RunOutcome, StopReason
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
"""Stop reasons that the recorded data determines; all others have external causes."""


class EndOfRecordingError(Exception):
    """Ends a replay at the point where an external cause ended the recorded run."""


@dataclass
class Script:
    """The state of a replay.

    Attributes:
        recording: The recording.
        done: Number of steps that were stored.
        captured: The requests of this build, in canonical form, one per request of the
            recording.
        compares: Whether requests are compared with the recorded ones.
        outcome: How the run ended.
        summarised: Number of summaries of the current step that were used.
        refused: Number of requests of the current step that were refused.
        known: Every text of the captured requests, stored once.
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
        """The current step; None after the last one."""
        steps = self.recording.steps
        return steps[self.done] if self.done < len(steps) else None

    @property
    def request(self) -> SentRequest | None:
        """The next request, or else the last one."""
        steps = self.recording.steps
        coming = [step.request for step in steps[self.done :] if step.request is not None]
        before = [step.request for step in steps[: self.done] if step.request is not None]
        return coming[0] if coming else before[-1] if before else None

    @property
    def section(self) -> MemorySection:
        """The memory section of the next request, or else of the last one."""
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
        """The time of the next request, or else of the last one."""
        request = self.request
        start_ms = 0 if request is None else request.start_ms
        return self.recording.turn.accept_time + timedelta(milliseconds=start_ms)

    def shared(self, text: RequestText) -> RequestText:
        """Returns a request that shares equal texts with earlier requests.

        Without sharing, the requests of a long run with a large window would take hundreds of
        megabytes.
        """

        def one(part: str | None) -> str | None:
            return None if part is None else self.known.setdefault(part, part)

        messages = text.messages
        if messages is not None:
            messages = tuple(self.known.setdefault(message, message) for message in messages)
        return RequestText(one(text.system), one(text.options), messages)

    def path(self, what: str) -> str:
        """Returns the path of a part of the current step."""
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
        """Returns the exception that ends the replay after the last step.

        Raises:
            DifferenceFoundError: The recorded run ended at this point without an external cause.
        """
        stop = self.recording.end.stop_reason
        if stop in DECIDED:
            self.differs(
                "request",
                f"This build {what}; the recorded run had ended.",
                f"end of the run: {stop.value}",
            )
        return EndOfRecordingError()
