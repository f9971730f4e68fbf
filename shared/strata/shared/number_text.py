"""Numbers in texts from outside: options, forms, strings of JSON.

Python's `int` and `float` accept more than people and other programs write as numbers: underscores
(``1_0`` is 10), the digits of all scripts, and white space. `str.isdigit` accepts even characters
that `int` refuses, such as ``²``.
"""

from __future__ import annotations

import math
import re

_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def whole_number(text: str) -> int:
    """Returns the integer that a text consists of: ASCII digits, and a sign before them.

    Raises:
        ValueError: The text is anything else, or has more digits than Python converts.
    """
    if _WHOLE.fullmatch(text) is None:
        raise ValueError(f"{text[:40]!r} is not a whole number")
    return int(text)


def is_whole_number(text: str) -> bool:
    """Returns whether a text consists of ASCII digits, without a sign."""
    return text.isascii() and text.isdigit()


def is_number(text: str) -> bool:
    """Returns whether a text is a decimal number, with an optional fraction and exponent."""
    return _NUMBER.fullmatch(text) is not None


def finite_number(text: str) -> float:
    """Returns the number that a text consists of.

    Raises:
        ValueError: The text is anything else, or the number is too large.
    """
    if not is_number(text) or not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:40]!r} is not a number")
    return number
