"""Selects the part of a text that a reranker reads together with a query."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence


def fit_pair(
    question: Sequence[int], text: Sequence[int], budget: int, most: int
) -> tuple[Sequence[int], Sequence[int]]:
    """Returns the tokens of a query and of a text that are read.

    A model takes longer for longer texts, and its scores become worse. Of a long text one part is
    read: the part with most tokens of the query, where rare tokens count more.

    Args:
        question: Tokens of the query. If the text needs the space, it is cut to half the budget.
        text: Tokens of the text.
        budget: Maximum number of tokens of both.
        most: Maximum number of tokens of the text.
    """
    question_tokens = question[: max(budget - min(len(text), most), budget // 2)]
    return question_tokens, _best_part(
        question_tokens, text, min(most, budget - len(question_tokens))
    )


def _best_part(question: Sequence[int], text: Sequence[int], size: int) -> Sequence[int]:
    if len(text) <= size:
        return text
    last = len(text) - size
    # Parts overlap by a quarter, so that few sentences are cut in both.
    starts = [*range(0, last, max(1, size * 3 // 4)), last]
    parts = [text[start : start + size] for start in starts]
    question_tokens = set(question)
    common_tokens = [question_tokens.intersection(part) for part in parts]
    holders = Counter(token for tokens in common_tokens for token in tokens)
    worth = [
        math.fsum(math.log(len(parts) / holders[token]) for token in tokens)
        for tokens in common_tokens
    ]
    # Among equal parts, the first.
    return parts[worth.index(max(worth))]
