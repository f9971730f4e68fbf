"""Detection of blank texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.shared.blank_text import is_blank

BLANK = st.text(
    st.sampled_from(
        [*" \t\n\v\f\r\x1c\x85\xa0\xad\u034f\u061c\u115f\u1680\u180e\u2028\u2029\u2800\u3000"]
        + [chr(code) for code in (*range(0x2000, 0x2010), *range(0x202A, 0x2030))]
        + [chr(code) for code in (*range(0x205F, 0x2065), 0x3164, 0xFE0F, 0xFEFF, 0xE0020, 0x1D159)]
    )
)


@given(BLANK)
def test_white_space_and_zero_width_characters_are_blank(text: str) -> None:
    assert is_blank(text)


@given(BLANK, st.characters(categories=("L", "N", "P", "S")), BLANK)
def test_text_with_one_visible_character_is_not_blank(
    before: str, visible: str, after: str
) -> None:
    if visible not in "\u115f\u1160\u2800\u3164\uffa0\U0001d159":
        assert not is_blank(before + visible + after)


@pytest.mark.parametrize("text", ["a", "👩‍🚀", "❤️", "é", "क्‍ष", "\N{ZERO WIDTH JOINER}x"])
def test_text_with_joiners_is_not_blank(text: str) -> None:
    assert not is_blank(text)
