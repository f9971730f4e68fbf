"""A text member of a JSON object is decoded while the object is being written."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from strata.shared.json_stream import MemberDecoder

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.text() | st.sampled_from(["mess", 'a"', "}", "{", "\\", "message\\"])


def decoded(text: str, sizes: list[int]) -> str:
    decoder, pieces = MemberDecoder("message"), list[str]()
    at = 0
    for size in [*sizes, len(text)]:
        pieces.append(decoder.feed(text[at : at + size]))
        at += size
    return "".join(pieces)


@given(
    before=st.dictionaries(NAMES.filter(lambda name: name != "message"), VALUES, max_size=3),
    message=st.text(),
    after=st.dictionaries(NAMES.filter(lambda name: name != "message"), VALUES, max_size=2),
    ascii_only=st.booleans(),
    indent=st.none() | st.integers(0, 3),
    sizes=st.lists(st.integers(1, 7), max_size=40),
)
def test_member_is_decoded_however_the_object_is_cut(
    before: dict[str, object],
    message: str,
    after: dict[str, object],
    ascii_only: bool,
    indent: int | None,
    sizes: list[int],
) -> None:
    value = {**before, "message": message, **after}
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert decoded(text, sizes) == message


@given(sizes=st.lists(st.integers(1, 7), max_size=40))
def test_escapes_and_surrogate_pairs_may_be_split(sizes: list[int]) -> None:
    text = '{"mess\\u0061ge": "a\\n\\"\\\\ \\ud83d\\ude00 \\u00fc 😀"}'
    assert decoded(text, sizes) == 'a\n"\\ 😀 ü 😀'


@given(text=st.text() | VALUES.map(json.dumps), sizes=st.lists(st.integers(1, 5), max_size=20))
def test_other_json_and_invalid_json_decode_to_nothing(text: str, sizes: list[int]) -> None:
    if '"message' not in text:
        assert decoded(text, sizes) == ""
    assert decoded('{"message": {"message": "inner"}}', sizes) == ""
    assert decoded('{"x": {"message": "inner"}}', sizes) == ""
    assert decoded('[{"message": "inner"}]', sizes) == ""
    assert decoded('{"message": 3}', sizes) == ""


def test_the_first_text_member_of_the_name_is_decoded() -> None:
    assert decoded('{"message": 1, "message": "a", "message": "b"}', [3] * 20) == "a"
