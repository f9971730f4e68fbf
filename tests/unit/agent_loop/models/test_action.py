"""Parsing of actions, while they are streamed and when they are complete."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostile_json import nested
from strata.agent_loop.models.structured_tools.action import MessageStream, ModelAction, parse
from strata.shared.json_stream import StringDecoder

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


def pieces(text: str, cuts: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in pairwise(edges)]


@given(TEXTS, st.booleans(), st.lists(st.integers(0, 10_000)))
def test_message_is_decoded_from_any_pieces(
    message: str, ascii_only: bool, cuts: list[int]
) -> None:
    action = {"tool": "say", "arguments": {"message": message}}
    text = json.dumps(action, ensure_ascii=ascii_only)
    stream = MessageStream("say")
    assert "".join(stream.feed(piece) for piece in pieces(text, cuts)) == message


@given(TEXTS, st.lists(st.integers(0, 10_000)))
def test_only_text_that_is_certain_is_streamed(message: str, cuts: list[int]) -> None:
    text = json.dumps({"tool": "say", "arguments": {"message": message}})
    stream, shown = MessageStream("say"), ""
    for piece in pieces(text, cuts):
        shown += stream.feed(piece)
        assert message.startswith(shown)


@given(st.text(alphabet='\\u"dD8cC0eE1n', max_size=40), st.lists(st.integers(0, 100)))
def test_decoder_accepts_any_text_in_any_pieces(text: str, cuts: list[int]) -> None:
    whole, split = StringDecoder(), StringDecoder()
    decoded = whole.feed(text)
    assert "".join(split.feed(piece) for piece in pieces(text, cuts)) == decoded
    decoded.encode()


def test_arguments_of_other_tools_are_not_streamed() -> None:
    stream = MessageStream("say")
    assert stream.feed('{"tool": "lookup", "arguments": {"message": "secret"}}') == ""


@pytest.mark.parametrize(
    "text",
    [
        '{"tool": "a", "arguments": {"x": 1}}',
        '```json\n{"tool": "a", "arguments": {"x": 1}}\n```',
        'Sure, I do that: {"name": "a", "parameters": {"x": 1}} done.',
        '{} {"tool": "a", "arguments": {"x": 1}}',
    ],
)
def test_an_action_is_parsed_from_various_forms(text: str) -> None:
    assert parse(text) == ModelAction("a", '{"x": 1}')


def test_raw_line_breaks_in_strings_are_accepted() -> None:
    action = parse('{"tool": "say", "arguments": {"message": "a\nb"}}')
    assert action is not None
    assert action.message() == "a\nb"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "words",
        '{"tool": "a"}',
        '{"tool": "a", "arguments": [1]}',
        '{"tool": 4, "arguments": {}}',
        # The output is cut off: the inner object must not count as an action.
        '{"tool": "make", "arguments": {"name": "x", "arguments": {}}',
        '{"result": {"name": "x", "arguments": {}}}',
    ],
)
def test_text_without_an_action_is_parsed_as_none(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize("levels", [101, 700, 1_100, 50_000])
def test_action_with_deep_arguments_is_kept_for_the_loop_to_refuse(levels: int) -> None:
    action = parse(f'{{"tool": "keep", "arguments": {nested(levels)}}}')
    assert action is not None
    assert action.tool == "keep"
    assert nested(levels) in action.arguments
    assert action.message() is None
