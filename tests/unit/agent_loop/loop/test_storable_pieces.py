"""The streamed pieces of a reply are the pieces of the stored reply."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from strata.agent_loop.domain.model.chat import (
    ModelEvent,
    ModelRequest,
    ReasoningDelta,
    ReasoningPart,
    TextDelta,
    ToolCall,
    ToolCallDelta,
)
from strata.agent_loop.domain.run.events import ReasoningPiece, TextPiece, ToolCallPiece
from strata.shared.json_text import storable_text
from unit.agent_loop.loop.in_memory_ports import Models, Sink
from unit.agent_loop.loop.loop_harness import LoopHarness
from unit.agent_loop.loop.model_replies import reply


@dataclass
class StreamingModel:
    """A model that streams the given events, one list for each request."""

    replies: list[Sequence[ModelEvent]]

    async def stream(self, _request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        for event in self.replies.pop(0):
            yield event


async def streamed(*replies: Sequence[ModelEvent]) -> Sink:
    harness = LoopHarness()
    settings = harness.models.settings
    models = Models(StreamingModel(list(replies)), settings)  # type: ignore[arg-type]
    harness.ports = replace(harness.ports, models=models)
    return await harness.run(harness.request(stream_tokens=True))


def written(sink: Sink, kind: type[TextPiece | ReasoningPiece]) -> str:
    return "".join(piece.text for piece in sink.of(kind))


def spoken(*pieces: str) -> list[ModelEvent]:
    return [*map(TextDelta, pieces), reply("".join(pieces))]


async def test_a_character_divided_between_two_pieces_is_whole() -> None:
    sink = await streamed(spoken("Hi \ud83d", "\ude00 there"))

    assert written(sink, TextPiece) == sink.stored[-1].text == "Hi \U0001f600 there"


async def test_half_a_character_at_the_end_is_replaced() -> None:
    sink = await streamed(spoken("Hi\ud83d"))

    assert written(sink, TextPiece) == sink.stored[-1].text == "Hi?"


async def test_nul_is_streamed_as_little_as_it_is_stored() -> None:
    sink = await streamed(spoken("\0", "a\0b"))

    assert written(sink, TextPiece) == sink.stored[-1].text == "ab"


async def test_divided_reasoning_is_whole() -> None:
    final = replace(reply("x"), content=(ReasoningPart("r\ud83d\ude00"), *reply("x").content))
    events: list[ModelEvent] = [
        ReasoningDelta("r\ud83d"),
        ReasoningDelta("\ude00"),
        TextDelta("x"),
        final,
    ]
    sink = await streamed(events)

    assert written(sink, ReasoningPiece) == "r\U0001f600"
    assert sink.stored[-1].parts[0] == ReasoningPart("r\U0001f600")


def calling(call_id: str, *pieces: str) -> list[ModelEvent]:
    deltas = [ToolCallDelta(0, call_id, "reads", piece) for piece in pieces]
    return [*deltas, reply("", ToolCall(call_id, "reads", "".join(pieces)))]


async def test_a_streamed_call_has_the_id_of_the_stored_one() -> None:
    sink = await streamed(calling("call_0", "{}"), calling("call_0", "{", "}"), spoken("Done."))

    stored = [call.id for message in sink.stored for call in message.tool_calls]
    assert stored == ["call_0", "call_0_2"]
    assert [piece.tool_call_id for piece in sink.of(ToolCallPiece)] == ["call_0", "call_0_2", ""]


async def test_divided_arguments_are_whole() -> None:
    sink = await streamed(calling("c\ud800", '{"a": "\ud83d', '\ude00"}'), spoken("Done."))

    stored = next(message.tool_calls[0] for message in sink.stored if message.tool_calls)
    pieces = sink.of(ToolCallPiece)
    assert "".join(piece.arguments for piece in pieces) == stored.arguments
    assert stored.arguments == '{"a": "\U0001f600"}'
    assert pieces[0].tool_call_id == stored.id == "c?"


@given(st.lists(st.text(st.characters(categories=("Cs", "Lu")) | st.just("\0"), max_size=4)))
async def test_any_pieces_are_the_stored_text(pieces: list[str]) -> None:
    sink = await streamed(spoken("a", *pieces))

    stored = storable_text("".join(["a", *pieces]))
    assert written(sink, TextPiece) == sink.stored[-1].text == stored
    stored.encode()
