"""Which part of a text is read with a question."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence


def fitting(
    question: Sequence[int], text: Sequence[int], service: int, most: int
) -> tuple[Sequence[int], Sequence[int]]:
    """Returns what of a question and of a text is read, as tokens.

    A model takes longer for longer texts, and says less of them. So of a long one a part is
    read: the one that has most of the question, by tokens that its other parts lack.

    Args:
        question: Its tokens. What lies beyond half of the space is cut off, if the text needs it.
        text: Its tokens.
        service: Most tokens of both.
        most: Most tokens of the text.
    """
    asked = question[: max(service - min(len(text), most), service // 2)]
    return asked, _best_part(asked, text, min(most, service - len(asked)))


def _best_part(question: Sequence[int], text: Sequence[int], size: int) -> Sequence[int]:
    if len(text) <= size:
        return text
    last = len(text) - size
    # A quarter is in two parts, so that few sentences are cut in both.
    starts = [*range(0, last, max(1, size * 3 // 4)), last]
    parts = [text[start : start + size] for start in starts]
    asked = set(question)
    held = [asked.intersection(part) for part in parts]
    holders = Counter(token for tokens in held for token in tokens)
    worth = [
        math.fsum(math.log(len(parts) / holders[token]) for token in tokens) for tokens in held
    ]
    # Of equal ones the first.
    return parts[worth.index(max(worth))]
