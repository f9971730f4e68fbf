"""Texts to store and queries to search for them; the same in every run."""

from __future__ import annotations

import random

_WHO = ("Anna", "Ben", "Chidi", "Dana", "Elif", "Farid", "Grace", "Hugo", "Ines", "Jonas")
_DID = ("repaired", "sold", "painted", "forgot", "ordered", "described", "borrowed", "moved")
_WHAT = (
    "the old sailing boat", "a box of letters", "the espresso machine", "her grandmother's piano",
    "the quarterly report", "a bicycle with one gear", "the garden fence", "two cinema tickets",
    "the broken telescope", "a bag of rye flour",
)  # fmt: skip
_WHERE = ("in Lisbon", "near the harbour", "at the office", "in the mountains", "at home")
_WHEN = ("last winter", "on a Tuesday", "before the move", "in early spring", "yesterday")


def facts(count: int) -> list[str]:
    """Returns `count` different passages of about 200 characters."""
    draw = random.Random(1)
    return [
        f"Note {number}. {' '.join(_sentence(draw) for _ in range(4))}" for number in range(count)
    ]


def questions(count: int) -> list[str]:
    """Returns `count` questions about the facts."""
    draw = random.Random(2)
    return [
        f"Who {draw.choice(_DID)} {draw.choice(_WHAT)} {draw.choice(_WHERE)}?" for _ in range(count)
    ]


def _sentence(draw: random.Random) -> str:
    parts = (_WHO, _DID, _WHAT, _WHERE, _WHEN)
    return " ".join(draw.choice(part) for part in parts) + "."
