"""The windows that a process holds between turns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strata.agent_loop.clients.window_cache import CachedWindow, WindowCache, whole_window
from strata.agent_loop.convert.messages import message_to_proto
from strata.agent_loop.domain.conversation.messages import Message, Window
from strata.agent_loop.domain.model.chat import TextPart
from strata.agent_loop.domain.ports import CommittedStep
from strata.api.recall.v1 import window_service_pb2 as window_pb
from strata.shared.messages import MessageRole


def message(id_: str, role: MessageRole = MessageRole.USER, text: str = "text") -> Message:
    return Message(id_, role, (TextPart(text),))


def response(*messages: Message, unchanged: int = 0) -> window_pb.BeginTurnResponse:
    window = window_pb.Window(revision=9, messages=map(message_to_proto, messages))
    return window_pb.BeginTurnResponse(window=window, unchanged_count=unchanged)


SYSTEM = message("s", MessageRole.SYSTEM)


def test_messages_left_out_of_the_answer_are_taken_from_the_held_window() -> None:
    first = whole_window(response(SYSTEM, message("a"), message("b")), None)
    assert first.to_proto() == window_pb.HeldWindow(
        revision=9, message_count=3, last_message_id="b"
    )
    rebuilt = message("s", MessageRole.SYSTEM, "A new text.")
    second = whole_window(response(rebuilt, message("c"), unchanged=2), first)
    assert second.window.messages == (rebuilt, message("a"), message("b"), message("c"))
    assert second.window.messages[1] is first.window.messages[1]
    assert whole_window(response(rebuilt, message("c")), second).window.messages == (
        rebuilt,
        message("c"),
    )


def test_the_size_of_a_held_window_does_not_grow_with_unchanged_extensions() -> None:
    held = whole_window(response(SYSTEM, message("a")), None)
    for _ in range(50):
        held = whole_window(response(SYSTEM, unchanged=1), held)
    assert held.size == whole_window(response(SYSTEM, message("a")), None).size


def test_a_committed_step_is_held_if_nothing_else_changed_the_window() -> None:
    begun = whole_window(response(SYSTEM, message("a")), None)
    reply = message("b", MessageRole.ASSISTANT)
    after = begun.with_step(CommittedStep((reply,), revision=10, message_count=7), size=100)
    assert after.window.messages == (SYSTEM, message("a"), reply)
    assert after.window.messages[2] is reply
    assert after.window.message_count == 7
    assert after.size == begun.size + 100
    assert after.to_proto() == window_pb.HeldWindow(
        revision=10, message_count=3, last_message_id="b"
    )
    # A compaction or a pin came in between, or the answer to a repeated commit.
    for revision in (9, 11):
        assert begun.with_step(CommittedStep((reply,), revision, 7), size=100) is begun


def held_of(size: int) -> CachedWindow:
    return CachedWindow(Window("c", "a", 1, (SYSTEM,), 1), size)


def test_the_least_recently_used_windows_are_dropped() -> None:
    cache = WindowCache(limit=100)
    for number in range(4):
        cache.put(("project", f"{number}"), held_of(30))
    assert [cache.get(("project", f"{number}")) is not None for number in range(4)] == [
        *(False, True, True, True)
    ]
    cache.put(("project", "1"), held_of(40))
    cache.put(("project", "4"), held_of(10))
    assert cache.get(("project", "2")) is None
    assert cache.get(("project", "1")) == held_of(40)
    assert cache.get(("another", "1")) is None


@pytest.mark.parametrize("limit", [0, 10])
def test_a_window_that_is_too_large_is_not_held(limit: int) -> None:
    cache = WindowCache(limit)
    cache.put(("project", "a"), held_of(30))
    assert cache.get(("project", "a")) is None
    cache.put(("project", "b"), replace(held_of(30), size=limit))
    assert cache.get(("project", "b")) is not None
