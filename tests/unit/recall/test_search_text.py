"""The searchable text of messages."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostile_json import HOSTILE_ARGUMENTS
from strata.recall.domain.messages import Message
from strata.recall.domain.search_text import MAX_SEARCH_CHARS, searchable_text, split_text
from strata.shared.messages import MessageRole
from strata.shared.tool_returns import pack

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PACKED, _ = pack("OK", {"place": "Riga"}, NOW, 100)


def message(role: MessageRole, *parts: dict[str, Any]) -> Message:
    return Message(id="message-1", role=role, parts=parts, create_time=NOW)


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def call(name: str, arguments: str) -> dict[str, Any]:
    return {"type": "tool_call", "tool_call_id": "c", "name": name, "arguments": arguments}


def test_text_without_spaces_is_split_into_pairs() -> None:
    result = split_text("I live in 北京市 now")
    assert result.words.split() == ["I", "live", "in", "now"]
    assert result.pairs == "北京 京市"


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        ("Gro\u0308\u00dfenwahn", "Gr\u00f6\u00dfenwahn"),
        ("\ufb01nancial", "financial"),
        ("\uff2b\uff21\uff34\uff21", "KATA"),
        ("\uff76\uff9e\uff72\uff84\uff9e", "\u30ac\u30a4\u30c9"),
        ("\u1112\u1161\u11ab\u1100\u116e\u11a8", "\ud55c\uad6d"),
    ],
    ids=["decomposed", "ligature", "full width", "half width", "decomposed Hangul"],
)
def test_equivalent_forms_of_characters_give_the_same_words(stored: str, asked: str) -> None:
    assert split_text(stored) == split_text(asked)


def test_a_single_character_is_kept() -> None:
    assert split_text("猫").pairs == "猫"


@given(value=st.text())
def test_words_are_dropped_only_at_the_limits(value: str) -> None:
    result = split_text(value)
    assert len(result.words) <= MAX_SEARCH_CHARS
    for word in value.split():
        if word.isascii():
            assert word in result.words


@pytest.mark.parametrize(
    ("given_message", "expected"),
    [
        (message(MessageRole.USER, text("hello")), "hello"),
        (message(MessageRole.SYSTEM, text("prompt")), ""),
        (replace(message(MessageRole.USER, text("heartbeat")), provenance=("system",)), ""),
        (replace(message(MessageRole.USER, text("hi")), provenance=("user", "web")), "hi"),
        (message(MessageRole.ASSISTANT, {"type": "reasoning", "text": "hm"}, text("yes")), "yes"),
        (message(MessageRole.ASSISTANT, text("ok"), call("memory_insert", '{"a": "b"}')), "ok"),
        (
            message(MessageRole.ASSISTANT, call("send_message", '{"message": "Hi there"}')),
            "Hi there",
        ),
        (message(MessageRole.ASSISTANT, call("send_message", "not json")), ""),
        (message(MessageRole.ASSISTANT, call("send_message", '{"message": 3}')), ""),
        (message(MessageRole.ASSISTANT, text("look"), call("conversation_search", "{}")), ""),
        (message(MessageRole.ASSISTANT, text("look"), call("expand_summary", "{}")), ""),
        (message(MessageRole.ASSISTANT, text("look"), call("search_memory", "{}")), ""),
        (message(MessageRole.SUMMARY, {"type": "summary", "text": "They met."}), "They met."),
        (
            message(MessageRole.TOOL, {"type": "tool_return", "name": "x", "content": "found"}),
            "found",
        ),
        (
            message(MessageRole.TOOL, {"type": "tool_return", "name": "x", "content": PACKED}),
            '{"place": "Riga"}',
        ),
        (
            message(
                MessageRole.TOOL,
                {"type": "tool_return", "name": "conversation_search", "content": "x"},
            ),
            "",
        ),
    ],
)
def test_the_searchable_text_depends_on_the_role_and_the_parts(
    given_message: Message, expected: str
) -> None:
    assert searchable_text(given_message) == expected


@pytest.mark.parametrize("arguments", HOSTILE_ARGUMENTS.values(), ids=HOSTILE_ARGUMENTS)
def test_hostile_json_leaves_a_text_that_can_be_stored(arguments: str) -> None:
    for written in (arguments, arguments.replace('"a"', '"message"')):
        returned = {"type": "tool_return", "name": "x", "content": written}
        for given_message in (
            message(MessageRole.ASSISTANT, call("send_message", written)),
            message(MessageRole.TOOL, returned),
        ):
            result = searchable_text(given_message)
            assert "\0" not in result
            result.encode()
