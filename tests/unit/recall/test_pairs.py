"""Pairs of tool calls and returns."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.recall.domain.messages import Message
from strata.recall.domain.pairs import pair_violations
from strata.shared.messages import MessageRole

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def asks(*ids: str) -> Message:
    parts = tuple({"type": "tool_call", "tool_call_id": i, "name": "t"} for i in ids)
    return Message(id="m", role=MessageRole.ASSISTANT, parts=parts, create_time=NOW)


def answers(*ids: str) -> Message:
    parts = tuple({"type": "tool_return", "tool_call_id": i, "name": "t"} for i in ids)
    return Message(id="m", role=MessageRole.TOOL, parts=parts, create_time=NOW)


APPROVES = Message(
    id="m", role=MessageRole.APPROVAL, parts=({"type": "approval_request"},), create_time=NOW
)
SAYS = Message(
    id="m", role=MessageRole.USER, parts=({"type": "text", "text": "x"},), create_time=NOW
)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [SAYS],
        [asks("a"), answers("a")],
        [asks("a", "b"), answers("b"), answers("a"), SAYS],
        [SAYS, asks("a", "b"), answers("a", "b"), asks("a"), answers("a")],
        [asks("a", "b"), APPROVES, answers("a"), APPROVES, answers("b")],
    ],
)
def test_complete_pairs_pass(messages: list[Message]) -> None:
    assert pair_violations(messages) == []


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([asks("a")], 0),
        ([SAYS, asks("a"), SAYS, answers("a")], 1),
        ([answers("a")], 0),
        ([asks("a", "b"), answers("a")], 0),
        ([asks("a"), answers("a", "a")], 1),
        ([asks("a", "a"), answers("a")], 0),
        ([answers("a"), asks("a")], 0),
        ([SAYS, asks("a"), APPROVES], 1),
        ([asks("a"), APPROVES, SAYS, answers("a")], 0),
    ],
)
def test_separated_pairs_are_reported(messages: list[Message], place: int) -> None:
    assert pair_violations(messages)[0].field == f"messages[{place}]"


@given(
    ids=st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=5, unique=True),
    drop=st.integers(0, 4),
)
def test_a_missing_return_is_always_reported(ids: list[str], drop: int) -> None:
    kept = [item for index, item in enumerate(ids) if index != drop % len(ids)]
    assert pair_violations([asks(*ids), answers(*ids)]) == []
    assert pair_violations([asks(*ids), answers(*kept)] if kept else [asks(*ids)])
