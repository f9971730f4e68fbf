"""The reply that a model is writing, for clients that begin to follow a run in the middle of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from strata.api.common.v1 import run_event_pb2
from strata.shared.text_buffer import TextBuffer

DELTAS = frozenset({"text_delta", "reasoning_delta", "tool_call_delta", "text_snapshot"})
"""Kinds of events that are not stored."""

_ENDS = frozenset(
    {"step_started", "step_restarted", "message_stored", "turn_finished", "run_finished"}
)


@dataclass(slots=True)
class _Call:
    """A call of the message under way."""

    id: str
    name: str
    arguments: TextBuffer = field(default_factory=TextBuffer)


@dataclass(slots=True)
class TextUnderWay:
    """The text of the message under way, as far as it was shown.

    Attributes:
        message_id: The message; empty for none.
        text: Its text.
        reasoning: Its reasoning.
        calls: Its calls with their arguments, by position.
        member: The member of a group that writes it.
    """

    message_id: str = ""
    text: TextBuffer = field(default_factory=TextBuffer)
    reasoning: TextBuffer = field(default_factory=TextBuffer)
    calls: dict[int, _Call] = field(default_factory=dict)
    member: run_event_pb2.EventMember | None = None

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.text or self.reasoning or self.calls)

    def snapshot(self) -> run_event_pb2.TextSnapshot:
        """Returns all of it."""
        return run_event_pb2.TextSnapshot(
            message_id=self.message_id,
            text=self.text.text,
            reasoning=self.reasoning.text,
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
        """Takes in an event of this kind."""
        if kind in DELTAS:
            self.member = event.member if event.HasField("member") else None
        match kind:
            case "text_delta":
                self._continue(event.text_delta.message_id)
                self.text.add(event.text_delta.text)
            case "reasoning_delta":
                self._continue(event.reasoning_delta.message_id)
                self.reasoning.add(event.reasoning_delta.text)
            case "tool_call_delta":
                delta = event.tool_call_delta
                self._continue(delta.message_id)
                call = self.calls.setdefault(delta.index, _Call(delta.tool_call_id, delta.name))
                call.arguments.add(delta.arguments)
            case _:
                pass

    def _continue(self, message_id: str) -> None:
        if message_id != self.message_id or not message_id:
            self.message_id = message_id
            self.text.clear()
            self.reasoning.clear()
            self.calls.clear()


class TextsUnderWay:
    """The messages under way in a run: one, or in the run of a group one of each member."""

    def __init__(self) -> None:
        self._texts: dict[str, TextUnderWay] = {}

    def note(self, event: run_event_pb2.RunEvent, kind: str | None) -> None:
        """Takes in an event of this kind; one without a member ends the messages of all."""
        run_id = event.member.run_id
        if kind in DELTAS:
            self._texts.setdefault(run_id, TextUnderWay()).note(event, kind)
        elif kind in _ENDS and run_id:
            self._texts.pop(run_id, None)
        elif kind in _ENDS:
            self._texts.clear()

    def snapshots(self) -> Iterator[run_event_pb2.RunEvent]:
        """Yields an event for each message of which there is some text."""
        for text in self._texts.values():
            if text:
                yield run_event_pb2.RunEvent(text_snapshot=text.snapshot(), member=text.member)
