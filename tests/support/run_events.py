"""The events of a run, as a client receives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chat_messages import text_of
from strata.api.common.v1 import message_pb2
from strata.api.common.v1.run_event_pb2 import (
    STOP_REASON_REQUIRES_APPROVAL,
    RunEvent,
    RunFinished,
)

_TRANSIENT = ("_delta", "text_snapshot")


@dataclass
class RunEvents:
    """The events of a run, in the order in which they were received."""

    events: list[RunEvent]

    @property
    def run_id(self) -> str:
        return self.events[0].run_id

    @property
    def kinds(self) -> list[str]:
        """The kinds of the events; consecutive deltas of one kind count once."""
        folded: list[str] = []
        for kind in kinds(self.events):
            if not (folded and folded[-1] == kind and kind.endswith("delta")):
                folded.append(kind)
        return folded

    @property
    def stored_events(self) -> list[RunEvent]:
        """The events that are kept: all but deltas and snapshots."""
        return [e for e in self.events if not str(e.WhichOneof("event")).endswith(_TRANSIENT)]

    @property
    def finished(self) -> RunFinished:
        """The terminal event; there is exactly one, and it is the last."""
        ends = [event for event in self.events if event.HasField("run_finished")]
        assert len(ends) == 1, self.kinds
        assert ends[0] is self.events[-1], self.kinds
        return ends[0].run_finished

    @property
    def messages(self) -> list[message_pb2.Message]:
        """The messages that were stored, in order."""
        return [e.message_stored.message for e in self.events if e.HasField("message_stored")]

    @property
    def tool_returns(self) -> list[message_pb2.ToolReturnPart]:
        """The returns of tool calls in the stored messages, in order."""
        return [
            part.tool_return
            for message in self.messages
            for part in message.parts
            if part.HasField("tool_return")
        ]

    @property
    def approval(self) -> message_pb2.ApprovalRequestPart:
        """The approval request with which the run ended."""
        assert self.finished.stop_reason == STOP_REASON_REQUIRES_APPROVAL
        [asked] = [event for event in self.events if event.HasField("approval_requested")]
        return asked.approval_requested.approval

    @property
    def streamed(self) -> str:
        """All text deltas, joined."""
        return "".join(e.text_delta.text for e in self.events if e.HasField("text_delta"))

    @property
    def text(self) -> str:
        """The text of the last message."""
        return text_of(self.messages[-1])


class RunStream:
    """A run whose events are being received.

    Attributes:
        events: The events received so far.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._responses = call.__aiter__()
        self.events: list[RunEvent] = []

    @property
    def run_id(self) -> str:
        """The id of the run; available after the first event."""
        return self.events[0].run_id

    async def until(self, kind: str) -> RunEvent:
        """Reads events up to and including the next one of a kind, and returns that one."""
        async for response in self._responses:
            self.events.append(response.event)
            if response.event.HasField(kind):
                return self.events[-1]
        raise AssertionError(f"no {kind} came: {RunEvents(self.events).kinds}")

    async def rest(self) -> RunEvents:
        """Reads the remaining events; returns all events of the run."""
        self.events += [response.event async for response in self._responses]
        return RunEvents(self.events)

    def leave(self) -> None:
        """Cancels the call, like a client that loses its connection."""
        self._call.cancel()


async def collect(call: Any) -> list[RunEvent]:
    """Reads all events of a stream."""
    return [response.event async for response in call if response.HasField("event")]


def kinds(events: Sequence[RunEvent]) -> list[str]:
    """Returns the kinds of events: ``text_delta``."""
    return [str(event.WhichOneof("event")) for event in events]
