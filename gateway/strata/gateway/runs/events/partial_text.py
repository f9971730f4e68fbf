"""The partial text of streamed replies, for clients that join a run in the middle of a reply."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from strata.api.common.v1 import run_event_pb2
from strata.shared.text_buffer import TextBuffer

DELTAS = frozenset({"text_delta", "reasoning_delta", "tool_call_delta", "text_snapshot"})
"""Kinds of events that are not stored."""

_ENDING_EVENTS = frozenset(
    {"step_started", "step_restarted", "message_stored", "turn_finished", "run_finished"}
)


@dataclass(slots=True)
class _PartialCall:
    """A call in a partial message."""

    id: str
    name: str
    arguments: TextBuffer = field(default_factory=TextBuffer)


@dataclass(slots=True)
class PartialText:
    """The streamed part of one message.

    Attributes:
        message_id: Id of the message; empty for none.
        text: Its text so far.
        reasoning: Its reasoning so far.
        calls: Its calls with their arguments so far, by position.
        beside_call: Whether the text is a thought beside a call, see `TextDelta.beside_call`.
        member: The member of a group that writes it.
    """

    message_id: str = ""
    text: TextBuffer = field(default_factory=TextBuffer)
    reasoning: TextBuffer = field(default_factory=TextBuffer)
    calls: dict[int, _PartialCall] = field(default_factory=dict)
    beside_call: bool = False
    member: run_event_pb2.EventMember | None = None

    def __bool__(self) -> bool:
        """Whether any of the message was streamed."""
        return bool(self.text or self.reasoning or self.calls)

    def snapshot(self) -> run_event_pb2.TextSnapshot:
        """Returns the whole partial message as a snapshot."""
        return run_event_pb2.TextSnapshot(
            message_id=self.message_id,
            text=self.text.text,
            reasoning=self.reasoning.text,
            beside_call=self.beside_call,
            tool_calls=(
                run_event_pb2.ToolCallDelta(
                    message_id=self.message_id,
                    index=index,
                    tool_call_id=call.id,
                    name=call.name,
                    arguments=call.arguments.text,
                )
                for index, call in self.calls.items()
            ),
        )

    def note(self, event: run_event_pb2.RunEvent, kind: str | None) -> None:
        """Processes an event of this kind."""
        if kind in DELTAS:
            self.member = event.member if event.HasField("member") else None
        match kind:
            case "text_delta":
                self._start_message(event.text_delta.message_id)
                self.text.add(event.text_delta.text)
                self.beside_call = event.text_delta.beside_call
            case "reasoning_delta":
                self._start_message(event.reasoning_delta.message_id)
                self.reasoning.add(event.reasoning_delta.text)
            case "tool_call_delta":
                delta = event.tool_call_delta
                self._start_message(delta.message_id)
                call = self.calls.setdefault(
                    delta.index, _PartialCall(delta.tool_call_id, delta.name)
                )
                call.arguments.add(delta.arguments)
            case _:
                pass

    def _start_message(self, message_id: str) -> None:
        if message_id != self.message_id or not message_id:
            self.message_id = message_id
            self.text.clear()
            self.reasoning.clear()
            self.calls.clear()
            self.beside_call = False


class PartialTexts:
    """The partial messages of a run: one, or in the run of a group one per member."""

    def __init__(self) -> None:
        self._texts: dict[str, PartialText] = {}

    def note(self, event: run_event_pb2.RunEvent, kind: str | None) -> None:
        """Processes an event of this kind; one without a member ends all messages."""
        run_id = event.member.run_id
        if kind in DELTAS:
            self._texts.setdefault(run_id, PartialText()).note(event, kind)
        elif kind in _ENDING_EVENTS and run_id:
            self._texts.pop(run_id, None)
        elif kind in _ENDING_EVENTS:
            self._texts.clear()

    def snapshots(self) -> Iterator[run_event_pb2.RunEvent]:
        """Yields a snapshot event for each partial message."""
        for text in self._texts.values():
            if text:
                yield run_event_pb2.RunEvent(text_snapshot=text.snapshot(), member=text.member)
