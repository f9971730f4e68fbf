"""Scores of rankings, by type of question."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from statistics import fmean

DEPTH = 10
_NORMAL_95 = 1.96
ALL = "all"


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one ranking, or the mean of many.

    Attributes:
        recall_5: Share of the evidence among the first five results.
        recall_10: Share of the evidence among the first ten.
        any_10: Whether any evidence is among the first ten.
        all_10: Whether all evidence is among the first ten.
        mrr: Reciprocal rank of the first evidence; 0 beyond rank ten.
    """

    recall_5: float
    recall_10: float
    any_10: float
    all_10: float
    mrr: float
    questions: int = 1


def score(results: Sequence[str], evidence: AbstractSet[str]) -> Score:
    """Returns the score of one ranking."""
    ten = results[:DEPTH]
    hits = evidence & set(ten)
    first = next((place for place, key in enumerate(ten, start=1) if key in evidence), None)
    return Score(
        recall_5=len(evidence & set(results[:5])) / len(evidence),
        recall_10=len(hits) / len(evidence),
        any_10=float(bool(hits)),
        all_10=float(len(hits) == len(evidence)),
        mrr=0.0 if first is None else 1 / first,
    )


def mean(scores: Iterable[Score]) -> Score:
    """Returns the mean, in which all questions have the same weight."""
    every = list(scores)
    return Score(
        fmean(score.recall_5 for score in every),
        fmean(score.recall_10 for score in every),
        fmean(score.any_10 for score in every),
        fmean(score.all_10 for score in every),
        fmean(score.mrr for score in every),
        len(every),
    )


def by_kind(scores: Mapping[str, Sequence[Score]], headline: Sequence[str]) -> dict[str, Score]:
    """Returns the mean of each type, and under `ALL` the mean of the headline types."""
    chosen = [kind for kind in scores if kind in headline] or list(scores)
    means = {ALL: mean(score for kind in chosen for score in scores[kind])}
    return means | {kind: mean(scores[kind]) for kind in sorted(scores)}


def interval(part: int, whole: int) -> tuple[float, float]:
    """Returns Wilson's 95% confidence interval of a share; (0, 1) if `whole` is 0."""
    if not whole:
        return 0.0, 1.0
    share, square = part / whole, _NORMAL_95**2
    middle = share + square / (2 * whole)
    reach = _NORMAL_95 * math.sqrt(share * (1 - share) / whole + square / (4 * whole**2))
    scale = 1 + square / whole
    return max(0.0, (middle - reach) / scale), min(1.0, (middle + reach) / scale)
