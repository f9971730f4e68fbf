"""Streams that show send_message as text: deltas, snapshots and stored events agree."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from strata.api.common.v1 import message_pb2 as pb
from strata.api.common.v1 import run_event_pb2 as ev
from strata.api.common.v1.run_event_pb2 import RunEvent
from strata.gateway.runs.convert.sent_text import SentText
from strata.gateway.runs.events.partial_text import PartialText, PartialTexts
from strata.shared.replies import as_text

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
CALLS = st.lists(
    st.tuples(st.sampled_from(["send_message", "grep_files"]), WORDS, st.booleans()), max_size=3
)


@dataclass
class Client:
    """The text of an unfinished message as a client assembles it."""

    text: str = ""
    reasoning: str = ""
    calls: list[str] = field(default_factory=list)
    stored: list[RunEvent] = field(default_factory=list)

    def take(self, events: Iterable[RunEvent]) -> None:
        for event in events:
            match event.WhichOneof("event"):
                case "text_delta":
                    self.text += event.text_delta.text
                case "reasoning_delta":
                    self.reasoning += event.reasoning_delta.text
                case "tool_call_delta":
                    if event.tool_call_delta.name:
                        self.calls.append(event.tool_call_delta.name)
                case "text_snapshot":
                    self.text = event.text_snapshot.text
                    self.reasoning = event.text_snapshot.reasoning
                    if event.text_snapshot.tool_calls:
                        self.calls = [call.name for call in event.text_snapshot.tool_calls]
                case _:
                    self.stored.append(event)


def delta(**fields: object) -> RunEvent:
    return RunEvent(run_id="run-1", **fields)  # type: ignore[arg-type]


def pieces(text: str, sizes: Sequence[int]) -> list[str]:
    cut, at = [], 0
    for size in [*sizes, max(1, len(text))]:
        cut.append(text[at : at + size])
        at += size
    return [piece for piece in cut if piece]


def reply(
    reasoning: str,
    text: str,
    calls: Sequence[tuple[str, str, bool]],
    sizes: Sequence[int],
    *,
    of_v2: bool = False,
) -> tuple[list[RunEvent], pb.Message]:
    """Returns the deltas of a reply, and its stored message.

    Args:
        reasoning: Its reasoning.
        text: Its text.
        calls: Name, text and encoding of each call.
        sizes: Sizes of the pieces.
        of_v2: Whether the V2 loop asked for it, which requires a call.
    """
    message = pb.Message(id="m", role=pb.ROLE_ASSISTANT)
    if reasoning:
        message.parts.add().reasoning.text = reasoning
    if text:
        # Text of the V2 loop without a call is a reply.
        message.parts.add().text.CopyFrom(pb.TextPart(text=text, beside_call=of_v2 and bool(calls)))
    events = [
        delta(reasoning_delta=ev.ReasoningDelta(message_id="m", text=piece))
        for piece in pieces(reasoning, sizes)
    ]
    events += [
        delta(text_delta=ev.TextDelta(message_id="m", text=piece, beside_call=of_v2))
        for piece in pieces(text, sizes)
    ]
    for index, (name, words, ascii_only) in enumerate(calls):
        arguments = json.dumps({"x": 1, "message": words}, ensure_ascii=ascii_only)
        message.parts.add().tool_call.CopyFrom(
            pb.ToolCallPart(tool_call_id=f"c{index}", name=name, arguments=arguments)
        )
        first = ev.ToolCallDelta(message_id="m", index=index, tool_call_id=f"c{index}", name=name)
        events.append(delta(tool_call_delta=first))
        events += [
            delta(tool_call_delta=ev.ToolCallDelta(message_id="m", index=index, arguments=piece))
            for piece in pieces(arguments, sizes)
        ]
    return events, message


def parts_of(message: pb.Message) -> tuple[str, str, list[str]]:
    return (
        "".join(part.text.text for part in message.parts),
        "".join(part.reasoning.text for part in message.parts),
        [part.tool_call.name for part in message.parts if part.HasField("tool_call")],
    )


@given(
    reasoning=WORDS,
    text=WORDS,
    calls=CALLS,
    sizes=st.lists(st.integers(1, 5), max_size=12),
    cut=st.integers(0, 60),
    of_v2=st.booleans(),
)
def test_streamed_text_equals_the_stored_text_also_after_resuming(
    reasoning: str,
    text: str,
    calls: list[tuple[str, str, bool]],
    sizes: list[int],
    cut: int,
    of_v2: bool,
) -> None:
    # A reply of the V2 loop without a call is the exception: it has ended before that is known.
    events, message = reply(reasoning, text, calls, sizes, of_v2=of_v2 and bool(calls))
    form, live = SentText(), Client()
    for event in events:
        live.take(form.convert(event))
    stored = as_text(message)
    assert stored is not None
    assert (live.text, live.reasoning, live.calls) == parts_of(stored)

    under_way, late_form, late = PartialText(), SentText(), Client()
    for event in events[:cut]:
        under_way.note(event, event.WhichOneof("event"))
    if under_way:
        late.take(late_form.convert(delta(text_snapshot=under_way.snapshot())))
    for event in events[cut:]:
        late.take(late_form.convert(event))
    assert (late.text, late.reasoning, late.calls) == (live.text, live.reasoning, live.calls)


def stored_events() -> list[RunEvent]:
    """Returns the stored events of a run with a sent text, another call, and a failed call."""
    _, events = reply("", "Hm.", [("send_message", "Hello", True), ("grep_files", "", True)], [])
    _, broken = reply("", "", [], [])
    bad = pb.ToolCallPart(tool_call_id="c2", name="send_message", arguments="{")
    broken.parts.add().tool_call.CopyFrom(bad)
    ok = pb.ToolReturnPart(tool_call_id="c0", name="send_message", status=pb.TOOL_STATUS_OK)
    other = pb.ToolReturnPart(tool_call_id="c1", name="grep_files", status=pb.TOOL_STATUS_OK)
    failed = pb.ToolReturnPart(tool_call_id="c2", name="send_message", status=pb.TOOL_STATUS_FAILED)
    sent_part, other_part = pb.Part(tool_return=ok), pb.Part(tool_return=other)

    def tool_message(*parts: pb.Part) -> ev.MessageStored:
        return ev.MessageStored(message=pb.Message(id="t", role=pb.ROLE_TOOL, parts=parts))

    arguments = '{"message": "Hello"}'
    started = ev.ToolStarted(tool_call_id="c0", name="send_message", arguments=arguments)
    bad_start = ev.ToolStarted(tool_call_id="c2", name="send_message", arguments="{")
    kinds: list[dict[str, object]] = [
        {"run_started": ev.RunStarted()},
        {"step_started": ev.StepStarted(step=1, message_id="m")},
        {"message_stored": ev.MessageStored(message=events)},
        {"tool_started": started},
        {"tool_finished": ev.ToolFinished(tool_return=ok)},
        {"tool_started": ev.ToolStarted(tool_call_id="c1", name="grep_files", arguments="{}")},
        {"tool_finished": ev.ToolFinished(tool_return=other)},
        {"message_stored": tool_message(sent_part, other_part)},
        {"message_stored": tool_message(sent_part)},
        {"step_started": ev.StepStarted(step=2, message_id="m")},
        {"message_stored": ev.MessageStored(message=broken)},
        {"tool_started": bad_start},
        {"tool_finished": ev.ToolFinished(tool_return=failed)},
        {"message_stored": tool_message(pb.Part(tool_return=failed))},
        {"run_finished": ev.RunFinished()},
    ]
    return [RunEvent(sequence=n, **kind) for n, kind in enumerate(kinds, 1)]  # type: ignore[arg-type]


def test_conversion_of_a_stored_event_does_not_depend_on_other_events() -> None:
    events = stored_events()
    originals = [event.SerializeToString() for event in events]
    form = SentText()
    live = [shown for event in events for shown in form.convert(event)]
    assert [event.sequence for event in live] == [1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 15]
    assert [event.SerializeToString() for event in events] == originals
    for after in range(len(events)):
        resumed = SentText()
        rest = [shown for event in events[after:] for shown in resumed.convert(event)]
        assert rest == [event for event in live if event.sequence > after]


def test_text_of_a_restarted_step_is_dropped() -> None:
    form, client = SentText(), Client()
    first, _ = reply("", "Wrong.", [], [])
    again, message = reply("", "", [("send_message", "Right.", True)], [2, 3])
    void = RunEvent(sequence=1, step_restarted=ev.StepRestarted(message_id="m"))
    for event in [*first, void]:
        list(form.convert(event))
    for event in again:
        client.take(form.convert(event))
    assert (client.text, client.reasoning) == ("Right.", "")
    assert parts_of(as_text(message) or message)[0] == "Right."


def of_member(name: str, **fields: object) -> RunEvent:
    return delta(member=ev.EventMember(agent_id=name, run_id=f"run-{name}"), **fields)


def call_piece(name: str, arguments: str, tool: str = "") -> RunEvent:
    piece = ev.ToolCallDelta(message_id=f"message-{name}", name=tool, arguments=arguments)
    return of_member(name, tool_call_delta=piece)


def test_texts_of_members_that_reply_concurrently_are_kept_separate() -> None:
    form = SentText()
    events = [
        of_member("a", step_started=ev.StepStarted(step=1, message_id="message-a")),
        call_piece("a", '{"message": "Hel', "send_message"),
        of_member("b", step_started=ev.StepStarted(step=2, message_id="message-b")),
        call_piece("b", '{"message": "Yes', "send_message"),
        call_piece("a", 'lo"}'),
    ]
    shown = [out for event in events for out in form.convert(event)]
    assert [out.text_delta.text for out in shown if out.HasField("text_delta")] == [
        "Hel",
        "Yes",
        "lo",
    ]
    assert not any(out.HasField("tool_call_delta") for out in shown)


def test_a_client_that_joins_gets_the_text_of_all_members_from_its_beginning() -> None:
    texts = PartialTexts()
    events = [
        of_member("a", step_started=ev.StepStarted(step=1, message_id="message-a")),
        call_piece("a", '{"message": "Hel', "send_message"),
        of_member("b", text_delta=ev.TextDelta(message_id="message-b", text="Yes")),
        call_piece("a", "lo"),
    ]
    for event in events:
        texts.note(event, event.WhichOneof("event"))
    form = SentText()
    joined = [out for event in texts.snapshots() for out in form.convert(event)]
    assert {out.member.agent_id: out.text_snapshot.text for out in joined} == {
        "a": "Hello",
        "b": "Yes",
    }
    [piece] = form.convert(call_piece("a", '!"}'))
    assert piece.text_delta.text == "!"

    over = of_member("a", message_stored=ev.MessageStored())
    texts.note(over, "message_stored")
    assert [event.member.agent_id for event in texts.snapshots()] == ["b"]
    texts.note(delta(run_finished=ev.RunFinished()), "run_finished")
    assert not list(texts.snapshots())
