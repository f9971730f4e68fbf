"""Shows what ``send_message`` sends as the text of the agent, in the events of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from strata.api.common.v1 import message_pb2
from strata.api.common.v1.run_event_pb2 import RunEvent, TextSnapshot, ToolCallDelta
from strata.shared.json_stream import MemberDecoder
from strata.shared.replies import BETWEEN_TEXTS, MESSAGE, as_text, is_sent, sent_text
from strata.shared.text_buffer import TextBuffer
from strata.shared.tool_catalogue import SEND_MESSAGE


@dataclass(slots=True)
class _Reply:
    """A reply under way.

    Attributes:
        text: The text beside the calls. It is a thought if ``send_message`` is called.
        reasoning: The reasoning.
        sends: Decoders of the calls of ``send_message``, by their position.
        sent: Whether any of them has sent a piece.
    """

    text: TextBuffer = field(default_factory=TextBuffer)
    reasoning: TextBuffer = field(default_factory=TextBuffer)
    sends: dict[int, MemberDecoder] = field(default_factory=dict)
    sent: set[int] = field(default_factory=set)

    def begin(self, index: int) -> None:
        """Begins a call of ``send_message``; the text so far becomes reasoning."""
        self.sends[index] = MemberDecoder(MESSAGE)
        self.reasoning.add(self.text.text)
        self.text.clear()

    def send(self, call: ToolCallDelta) -> str:
        """Returns the text that a piece of the arguments of a call sends."""
        text = self.sends[call.index].feed(call.arguments)
        if text and call.index not in self.sent:
            text = BETWEEN_TEXTS + text if self.sent else text
            self.sent.add(call.index)
        return text


class SentText:
    """Changes the events of one stream, see `SendMessageRequest.send_message_as_text`.

    What becomes of a stored event depends on it alone, so that a client that resumes sees the same
    events. Deltas depend on those of the same reply, of which a resumed stream begins with a
    snapshot.
    """

    def __init__(self) -> None:
        # By message, with the run of the member that writes it. Members of a group may write at
        # the same time.
        self._replies: dict[str, tuple[str, _Reply]] = {}

    def shown(self, event: RunEvent) -> Sequence[RunEvent]:
        """Returns what is shown in place of an event, which is not changed."""
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

    def _reply(self, event: RunEvent, message_id: str) -> _Reply:
        return self._replies.setdefault(message_id, (event.member.run_id, _Reply()))[1]

    def _forget_replies(self, event: RunEvent) -> None:
        """Forgets what the writer of an event writes; an event without a member is for all."""
        run_id = event.member.run_id
        self._replies = {
            message_id: (writer, reply)
            for message_id, (writer, reply) in self._replies.items()
            if run_id and writer != run_id
        }

    def _text(self, event: RunEvent) -> RunEvent:
        delta = event.text_delta
        reply = self._reply(event, delta.message_id)
        if not reply.sends:
            reply.text.add(delta.text)
            return event
        reply.reasoning.add(delta.text)
        out = _like(event)
        out.reasoning_delta.message_id, out.reasoning_delta.text = delta.message_id, delta.text
        return out

    def _call(self, event: RunEvent) -> list[RunEvent]:
        delta = event.tool_call_delta
        reply = self._reply(event, delta.message_id)
        out: list[RunEvent] = []
        if delta.name == SEND_MESSAGE and delta.index not in reply.sends:
            beside = bool(reply.text)
            reply.begin(delta.index)
            if beside:
                moved = _like(event)
                moved.text_snapshot.message_id = delta.message_id
                moved.text_snapshot.reasoning = reply.reasoning.text
                out.append(moved)
        if delta.index not in reply.sends:
            return [event]
        if text := reply.send(delta):
            piece = _like(event)
            piece.text_delta.message_id, piece.text_delta.text = delta.message_id, text
            out.append(piece)
        return out

    def _snapshot(self, event: RunEvent) -> RunEvent:
        snapshot = event.text_snapshot
        reply = _Reply()
        self._replies[snapshot.message_id] = (event.member.run_id, reply)
        reply.text.set(snapshot.text)
        reply.reasoning.set(snapshot.reasoning)
        sends = [call for call in snapshot.tool_calls if call.name == SEND_MESSAGE]
        if not sends:
            return event
        texts = []
        for call in sends:
            reply.begin(call.index)
            texts.append(reply.send(call))
        out = _like(event)
        out.text_snapshot.CopyFrom(
            TextSnapshot(
                message_id=snapshot.message_id,
                text="".join(texts),
                reasoning=reply.reasoning.text,
                tool_calls=(call for call in snapshot.tool_calls if call.name != SEND_MESSAGE),
            )
        )
        return out

    def _stored(self, event: RunEvent) -> list[RunEvent]:
        message = event.message_stored.message
        self._replies.pop(message.id, None)
        shown: message_pb2.Message | None = as_text(message)
        if shown is message:
            return [event]
        if shown is None:
            return []
        out = RunEvent()
        out.CopyFrom(event)
        out.message_stored.message.CopyFrom(shown)
        return [out]


def _like(event: RunEvent) -> RunEvent:
    """Returns an event of the same place and time that says nothing yet."""
    out = RunEvent(sequence=event.sequence, run_id=event.run_id)
    if event.HasField("create_time"):
        out.create_time.CopyFrom(event.create_time)
    if event.HasField("member"):
        out.member.CopyFrom(event.member)
    return out
