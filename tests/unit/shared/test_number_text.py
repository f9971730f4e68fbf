"""Numbers in texts from outside."""

from __future__ import annotations

import pytest

from strata.shared.number_text import finite_number, is_number, is_whole_number, whole_number


@pytest.mark.parametrize(
    "text", ["1_0", "\u0661\u0660", " 10", "10\n", "\u00b2", "", "+", "1 0", "0x1"]
)
def test_text_that_only_python_takes_for_a_number_is_none(text: str) -> None:
    assert not is_whole_number(text)
    assert not is_number(text)
    with pytest.raises(ValueError, match="is not a whole number"):
        whole_number(text)
    with pytest.raises(ValueError, match="is not a number"):
        finite_number(text)


def test_numbers_are_read() -> None:
    assert [whole_number(text) for text in ("10", "-3", "+5", "007")] == [10, -3, 5, 7]
    assert [finite_number(text) for text in ("-0.5", "1e3", "7")] == [-0.5, 1000.0, 7.0]
    for text in ("1e999", "nan", "inf"):
        with pytest.raises(ValueError, match="is not a number"):
            finite_number(text)
