"""JSON from outside either parses to a value that can be sent, or raises a ValueError."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostile_json import HOSTILE_ARGUMENTS, nested
from strata.shared.json_text import (
    MAX_JSON_DEPTH,
    JsonTextError,
    JsonTooDeepError,
    LoneSurrogateFilter,
    encodable,
    indented_json,
    is_deeper,
    parse_json,
    parse_request_json,
    replace_lone_surrogates,
)

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(VALUES | st.floats() | st.text(st.characters()) | st.tuples(VALUES, VALUES))
def test_indented_texts_are_those_of_json_dumps(value: object) -> None:
    assert indented_json(value) == json.dumps(value, ensure_ascii=False, indent=2)


@given(VALUES)
def test_ordinary_values_are_parsed_like_json_loads(value: object) -> None:
    text = json.dumps(value)
    assert parse_json(text) == json.loads(text) == value
    assert parse_json(text.encode()) == value


@given(st.text() | st.text(alphabet='[]{}":,\\u0dAe1-N', max_size=200))
def test_any_text_is_parsed_to_a_sendable_value_or_refused(text: str) -> None:
    try:
        value = parse_json(text)
    except JsonTextError:
        return
    json.dumps(encodable(value), ensure_ascii=False, allow_nan=False).encode()


@pytest.mark.parametrize("text", HOSTILE_ARGUMENTS.values(), ids=HOSTILE_ARGUMENTS)
def test_hostile_texts_raise_nothing_but_json_text_error(text: str) -> None:
    try:
        value = parse_json(text)
    except JsonTextError:
        return
    json.dumps(encodable(value), ensure_ascii=False, allow_nan=False).encode()


@given(st.integers(1, 2_000), st.sampled_from("[{"))
def test_depth_has_an_exact_limit(levels: int, bracket: str) -> None:
    opening, closing = ("[", "]") if bracket == "[" else ('{"a":', "}")
    text = opening * (levels - 1) + "[]" + closing * (levels - 1)
    if levels <= MAX_JSON_DEPTH:
        assert not is_deeper(parse_json(text))
    else:
        with pytest.raises(JsonTooDeepError):
            parse_json(text)


def test_brackets_inside_strings_are_not_levels() -> None:
    assert parse_json(json.dumps("[" * 500)) == "[" * 500


def test_wide_values_do_not_count_as_deep() -> None:
    assert len(parse_json(json.dumps([[]] * 5_000))) == 5_000
    assert parse_json(nested(MAX_JSON_DEPTH))


def test_the_error_for_a_number_with_too_many_digits_names_the_limit() -> None:
    with pytest.raises(JsonTextError) as raised:
        parse_json("9" * 5_000)
    assert str(raised.value) == "it holds a number of more than 4,300 digits"


@pytest.mark.parametrize(
    "body",
    [
        *(text.encode("utf-8", "surrogatepass") for text in HOSTILE_ARGUMENTS.values()),
        *(b'{"a": 1e309}', b'{"a": -1E400}', b"[NaN]", b'{"a": 1, "a": 1}', b'[{"": 1, "": 2}]'),
        *(b'"\\uD83D"', b'{"\\udead": 1}', b'"\xed\xa0\x80"', b'"\xff"', b"", b"\xef\xbb\xbf{}"),
    ],
)
def test_a_request_parses_to_a_value_that_can_be_sent_unchanged_or_is_refused(body: bytes) -> None:
    try:
        value = parse_request_json(body)
    except JsonTextError:
        return
    assert json.loads(json.dumps(value, ensure_ascii=False, allow_nan=False).encode()) == value
    assert value == json.loads(body, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


@pytest.mark.parametrize(
    "body", [rb'{"a": 1e309}', b"[-Infinity]", b'{"a": 1, "a": 1}', rb'"\ud83d"', b'"\xed\xa0\x80"']
)
def test_a_request_whose_value_would_be_changed_or_cannot_be_sent_is_refused(body: bytes) -> None:
    with pytest.raises(JsonTextError):
        parse_request_json(body)


def test_a_repeated_name_among_very_many_is_found_in_linear_time() -> None:
    # Comparisons of all names with each other would take longer than a test may.
    names = ",".join(f'"{number}": 0' for number in range(300_000))
    with pytest.raises(JsonTextError, match="'299999' more than once"):
        parse_request_json(f'{{{names}, "299999": 0}}'.encode())


def test_a_request_may_have_escaped_surrogate_pairs_and_large_finite_numbers() -> None:
    assert parse_request_json(rb'["\ud83d\ude00", 1e308, -0.0, 9007199254740993]') == [
        "\U0001f600",
        1e308,
        -0.0,
        9007199254740993,
    ]


# Half of an emoji, whole ones, and texts that look like escapes of one.
_CUT_TEXTS = st.lists(
    st.sampled_from(["\ud83d", "\ude00", "\U0001f600", "\\", "u", "d83d", "\n", "x", "\u00e9"]),
    max_size=12,
).map("".join)


@given(_CUT_TEXTS, st.lists(st.integers(0, 120)), st.booleans())
def test_only_unpaired_surrogates_of_a_text_are_replaced(
    held: str, cuts: list[int], upper: bool
) -> None:
    text = json.dumps({"a": held, "b": 1}).encode()
    if upper:
        text = re.sub(rb"(?<!\\)\\u(d...)", lambda match: rb"\u" + match[1].upper(), text)
    # What the parser returns for two halves that stand side by side is a whole character.
    expected = re.sub("[\ud800-\udfff]", "\ufffd", json.loads(text)["a"])

    assert json.loads(replace_lone_surrogates(text)) == {"a": expected, "b": 1}

    surrogates = LoneSurrogateFilter()
    bounds = [0, *sorted(cuts), len(text)]
    chunks = [text[bounds[i] : bounds[i + 1]] for i in range(len(bounds) - 1)]
    parts = [*(surrogates.feed(chunk) for chunk in chunks), surrogates.close()]
    assert b"".join(parts) == replace_lone_surrogates(text)


def test_a_text_that_is_cut_within_an_escape_is_passed_on_unchanged() -> None:
    surrogates = LoneSurrogateFilter()
    assert surrogates.feed(b'{"a": "\\\\\\ud83') == b'{"a": "\\\\'
    assert surrogates.close() == b"\\ud83"
