"""The queue between a turn and its stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

import hypothesis
from hypothesis import strategies as st

from strata.agent_loop.domain.run.events import (
    ReasoningPiece,
    RunEvent,
    StepStarted,
    TextPiece,
    ToolCallPiece,
)
from strata.agent_loop.servicers.turns import EventQueue

PIECE = TextPiece("message-1", "x")


async def test_a_turn_waits_for_a_slow_reader_and_no_event_is_lost() -> None:
    queue = EventQueue(ahead=2)

    async def turn() -> None:
        for number in range(10):
            await queue.emit(StepStarted("step-1", number, "model"))

    task = asyncio.create_task(turn())
    task.add_done_callback(lambda _: queue.end())
    await asyncio.sleep(0)
    assert not task.done()
    read = 0
    while await queue.next(task) is not None:
        read += 1
    assert read == 10


async def test_turn_without_a_reader_does_not_wait() -> None:
    queue = EventQueue(ahead=1)

    async def turn() -> None:
        for _ in range(10):
            await queue.emit(PIECE)

    task = asyncio.create_task(turn())
    await asyncio.sleep(0)
    queue.abandon()
    await asyncio.wait_for(task, 30)


async def test_waiting_reader_gets_the_end() -> None:
    queue = EventQueue()
    task = asyncio.create_task(asyncio.sleep(0.01))
    task.add_done_callback(lambda _: queue.end())
    assert await asyncio.wait_for(queue.next(task), 30) is None


async def _read_all(events: Iterable[RunEvent]) -> list[RunEvent]:
    queue, emitted = EventQueue(ahead=1000), asyncio.Event()

    async def turn() -> None:
        for event in events:
            await queue.emit(event)
        emitted.set()
        await asyncio.sleep(0)

    task = asyncio.create_task(turn())
    task.add_done_callback(lambda _: queue.end())
    await emitted.wait()
    read: list[RunEvent] = []
    while (event := await queue.next(task)) is not None:
        read.append(event)
    return read


async def test_waiting_pieces_of_a_text_are_joined() -> None:
    pieces = [TextPiece("message-1", text) for text in ("Good ", "morning", ".")]

    assert await _read_all(pieces) == [TextPiece("message-1", "Good morning.")]


async def test_the_first_piece_is_read_without_waiting_for_the_second() -> None:
    queue = EventQueue()
    task = asyncio.create_task(asyncio.sleep(60))
    await queue.emit(PIECE)

    assert await asyncio.wait_for(queue.next(task), 30) == PIECE
    task.cancel()


async def test_pieces_of_a_call_are_joined_and_two_calls_are_not() -> None:
    first, second = ("call-1", "send"), ("call-2", "send")
    pieces = [
        ToolCallPiece("message-1", 0, *first, '{"a"'),
        ToolCallPiece("message-1", 0, "", "", ": 1}"),
        ToolCallPiece("message-1", 1, *second, "{"),
        ToolCallPiece("message-1", 1, "", "", "}"),
    ]

    assert await _read_all(pieces) == [
        ToolCallPiece("message-1", 0, *first, '{"a": 1}'),
        ToolCallPiece("message-1", 1, *second, "{}"),
    ]


_EVENTS = st.one_of(
    st.builds(TextPiece, st.sampled_from(["a", "b"]), st.text(max_size=3)),
    st.builds(ReasoningPiece, st.sampled_from(["a", "b"]), st.text(max_size=3)),
    st.builds(
        ToolCallPiece,
        st.just("a"),
        st.integers(0, 1),
        st.just(""),
        st.just(""),
        st.text(max_size=3),
    ),
    st.builds(StepStarted, st.just("step-1"), st.integers(1, 3), st.just("model")),
)


def _characters(events: Iterable[RunEvent]) -> list[tuple[RunEvent, str]]:
    """Returns each character with its kind of piece, and each other event, in order."""
    characters: list[tuple[RunEvent, str]] = []
    for event in events:
        match event:
            case TextPiece() | ReasoningPiece():
                characters += [(replace(event, text=""), text) for text in event.text]
            case ToolCallPiece():
                characters += [(replace(event, arguments=""), text) for text in event.arguments]
            case _:
                characters.append((event, ""))
    return characters


@hypothesis.given(st.lists(_EVENTS, max_size=20))
def test_joined_pieces_have_the_same_characters_in_the_same_order(events: list[RunEvent]) -> None:
    read = asyncio.run(_read_all(events))

    assert _characters(read) == _characters(events)
    assert len(read) <= len(events)
