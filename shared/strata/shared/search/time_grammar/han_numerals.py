"""Numbers in Han characters up to 99, as Chinese and Japanese write them."""

from __future__ import annotations

HAN_NUMERAL = "[一二两三四五六七八九十]{1,3}"
"""Matches the characters of such a number."""

_DIGITS = {
    "一": 1, "二": 2, "两": 2, "三": 3, "四": 4, "五": 5, "六": 6, "七": 7, "八": 8, "九": 9,
}  # fmt: skip


def parse_number(text: str) -> int:
    """Returns the value of "12", "十二" or "二十".

    Raises:
        ValueError: The text is not a number up to 99.
    """
    if text.isdigit():
        return int(text)
    tens, ten, ones = text.rpartition("十")
    if not text or len(tens) > 1 or len(ones) > 1 or not set(tens + ones) <= set(_DIGITS):
        raise ValueError(f"not a number: {text}")
    return (_DIGITS.get(tens, 1) * 10 if ten else 0) + _DIGITS.get(ones, 0)


def numeral(number: int) -> str:
    """Returns the characters of a number from 1 to 99."""
    tens, ones = divmod(number, 10)
    digits = {value: character for character, value in _DIGITS.items() if character != "两"}
    return (digits[tens] if tens > 1 else "") + ("十" if tens else "") + digits.get(ones, "")


MONTHS = {f"{name}月": month for month in range(1, 13) for name in (str(month), numeral(month))}
"""Names of the months."""
