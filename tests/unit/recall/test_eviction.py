"""Eviction of archived messages from a window."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from strata.recall.domain.eviction import remaining_messages
from strata.recall.domain.messages import Message
from strata.shared.messages import MessageRole

NOW = datetime(2026, 11, 25, tzinfo=UTC)


def message(sequence: int, role: MessageRole, **fields: Any) -> Message:
    made = Message(id=f"message-{sequence}", role=role, parts=(), create_time=NOW, **fields)
    return replace(made, sequence=sequence)


def turn(first: int, run: str) -> list[Message]:
    """An input and a step with a call and its return."""
    return [
        message(first, MessageRole.USER, run_id=run),
        message(first + 1, MessageRole.ASSISTANT, run_id=run, step=1),
        message(first + 2, MessageRole.TOOL, run_id=run, step=1),
    ]


SYSTEM = message(0, MessageRole.SYSTEM)
WINDOW = [SYSTEM, *turn(1, "run-1"), *turn(4, "run-2"), *turn(7, "run-3")]


def sequences(messages: list[Message]) -> list[int]:
    return [message.sequence for message in messages]


def test_messages_up_to_the_sequence_are_removed() -> None:
    assert sequences(remaining_messages(WINDOW, 6)) == [0, 7, 8, 9]
    assert sequences(remaining_messages(remaining_messages(WINDOW, 6), 6)) == [0, 7, 8, 9]


def test_a_step_whose_return_is_later_is_kept() -> None:
    assert sequences(remaining_messages(WINDOW, 5)) == [0, 5, 6, 7, 8, 9]


def test_summaries_and_pinned_steps_stay_in_their_order() -> None:
    summary = message(20, MessageRole.SUMMARY)
    window = [SYSTEM, summary, *turn(1, "run-1"), *turn(4, "run-2")]
    window[3] = replace(window[3], pinned=True)
    assert sequences(remaining_messages(window, 6)) == [0, 20, 2, 3]


def test_a_pinned_input_stays_without_the_steps_of_its_run() -> None:
    window = [replace(message, pinned=message.sequence == 1) for message in WINDOW]
    assert sequences(remaining_messages(window, 9)) == [0, 1]


def test_the_boot_call_and_its_return_are_evicted_together() -> None:
    boot = [
        message(1, MessageRole.ASSISTANT),
        message(2, MessageRole.TOOL),
        message(3, MessageRole.USER),
    ]
    assert sequences(remaining_messages([SYSTEM, *boot], 1)) == [0, 1, 2, 3]
    assert sequences(remaining_messages([SYSTEM, *boot], 2)) == [0, 3]
