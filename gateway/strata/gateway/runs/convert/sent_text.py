"""Converts the messages of ``send_message`` in a run's events to text of the agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from strata.api.common.v1 import message_pb2
from strata.api.common.v1.run_event_pb2 import RunEvent, TextSnapshot, ToolCallDelta
from strata.shared.json_stream import MemberDecoder
from strata.shared.replies import BETWEEN_TEXTS, as_text, is_sent, sent_text
from strata.shared.text_buffer import TextBuffer
from strata.shared.tool_catalogue import CATALOGUE, TEXT_TOOLS


@dataclass(slots=True)
class _OpenReply:
    """A reply that is being streamed.

    Attributes:
        text: The text outside of calls; it counts as reasoning if ``send_message`` is called.
        reasoning: The reasoning.
        sends: Decoders of the calls of ``send_message``, by their position.
        sent: Whether any of them has sent a piece.
    """

    text: TextBuffer = field(default_factory=TextBuffer)
    reasoning: TextBuffer = field(default_factory=TextBuffer)
    sends: dict[int, MemberDecoder] = field(default_factory=dict)
    sent: set[int] = field(default_factory=set)

    def start_send(self, index: int, tool: str) -> None:
        """Starts a call of ``send_message``; the text so far becomes reasoning."""
        self.sends[index] = MemberDecoder(CATALOGUE[tool].text_argument)
        self.move_text()

    def move_text(self) -> None:
        """Turns the text so far into reasoning."""
        self.reasoning.add(self.text.text)
        self.text.clear()

    def sent_piece(self, call: ToolCallDelta) -> str:
        """Returns the message text in a piece of a call's arguments."""
        text = self.sends[call.index].feed(call.arguments)
        if text and call.index not in self.sent:
            text = BETWEEN_TEXTS + text if self.sent else text
            self.sent.add(call.index)
        return text


class SentText:
    """Converts the events of one stream, see `SendMessageRequest.send_message_as_text`.

    The result for a stored event depends only on that event, so a resumed stream has the same
    events. Deltas depend on earlier ones of the same reply; a resumed stream begins with a snapshot
    of it.
    """

    def __init__(self) -> None:
        # By message id, with the run of the member that writes it. Members may write concurrently.
        self._replies: dict[str, tuple[str, _OpenReply]] = {}

    def convert(self, event: RunEvent) -> Sequence[RunEvent]:
        """Returns the events that replace an event, which is not modified."""
        match event.WhichOneof("event"):
            case "text_delta":
                return [self._text(event)]
            case "reasoning_delta":
                delta = event.reasoning_delta
                self._reply(event, delta.message_id).reasoning.add(delta.text)
            case "tool_call_delta":
                return self._call(event)
            case "text_snapshot":
                return [self._snapshot(event)]
            case "step_started" | "step_restarted":
                self._forget_replies(event)
            case "message_stored":
                return self._stored(event)
            case "tool_started":
                started = event.tool_started
                if sent_text(started.name, started.arguments) is not None:
                    return []
            case "tool_finished" if is_sent(event.tool_finished.tool_return):
                return []
            case _:
                pass
        return [event]

    def _reply(self, event: RunEvent, message_id: str) -> _OpenReply:
        return self._replies.setdefault(message_id, (event.member.run_id, _OpenReply()))[1]

    def _forget_replies(self, event: RunEvent) -> None:
        """Drops the replies of the event's member; an event without a member drops all."""
        run_id = event.member.run_id
        self._replies = {
            message_id: (writer, reply)
            for message_id, (writer, reply) in self._replies.items()
            if run_id and writer != run_id
        }

    def _text(self, event: RunEvent) -> RunEvent:
        delta = event.text_delta
        reply = self._reply(event, delta.message_id)
        if not (reply.sends or delta.beside_call):
            reply.text.add(delta.text)
            return event
        reply.reasoning.add(delta.text)
        out = _empty_copy(event)
        out.reasoning_delta.message_id, out.reasoning_delta.text = delta.message_id, delta.text
        return out

    def _call(self, event: RunEvent) -> list[RunEvent]:
        delta = event.tool_call_delta
        reply = self._reply(event, delta.message_id)
        out: list[RunEvent] = []
        if delta.name in TEXT_TOOLS and delta.index not in reply.sends:
            had_text = bool(reply.text)
            reply.start_send(delta.index, delta.name)
            if had_text:
                moved = _empty_copy(event)
                moved.text_snapshot.message_id = delta.message_id
                moved.text_snapshot.reasoning = reply.reasoning.text
                out.append(moved)
        if delta.index not in reply.sends:
            return [event]
        if text := reply.sent_piece(delta):
            piece = _empty_copy(event)
            piece.text_delta.message_id, piece.text_delta.text = delta.message_id, text
            out.append(piece)
        return out

    def _snapshot(self, event: RunEvent) -> RunEvent:
        snapshot = event.text_snapshot
        reply = _OpenReply()
        self._replies[snapshot.message_id] = (event.member.run_id, reply)
        reply.text.set(snapshot.text)
        reply.reasoning.set(snapshot.reasoning)
        sends = [call for call in snapshot.tool_calls if call.name in TEXT_TOOLS]
        if not (sends or snapshot.beside_call):
            return event
        if snapshot.beside_call:
            reply.move_text()
        texts = []
        for call in sends:
            reply.start_send(call.index, call.name)
            texts.append(reply.sent_piece(call))
        out = _empty_copy(event)
        out.text_snapshot.CopyFrom(
            TextSnapshot(
                message_id=snapshot.message_id,
                text="".join(texts),
                reasoning=reply.reasoning.text,
                tool_calls=(call for call in snapshot.tool_calls if call.name not in TEXT_TOOLS),
            )
        )
        return out

    def _stored(self, event: RunEvent) -> list[RunEvent]:
        message = event.message_stored.message
        self._replies.pop(message.id, None)
        converted: message_pb2.Message | None = as_text(message)
        if converted is message:
            return [event]
        if converted is None:
            return []
        out = RunEvent()
        out.CopyFrom(event)
        out.message_stored.message.CopyFrom(converted)
        return [out]


def _empty_copy(event: RunEvent) -> RunEvent:
    """Returns an event with the same sequence, run, time and member, and no content."""
    out = RunEvent(sequence=event.sequence, run_id=event.run_id)
    if event.HasField("create_time"):
        out.create_time.CopyFrom(event.create_time)
    if event.HasField("member"):
        out.member.CopyFrom(event.member)
    return out
