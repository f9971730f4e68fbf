"""Scores of rankings, their means by group of questions, and confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.retrieval.datasets import FACTUAL, Chat, Question

DEPTH = 10
"""Number of results from which turn metrics are computed."""
DEEP = 50
"""Number of results from which session metrics and ranks of the evidence are taken."""
TURN_METRICS = (
    "recall@5",
    "recall@10",
    "any@10",
    "all@10",
    "MRR",
    "hit@1",
    "hit@3",
)
SESSION_METRICS = ("session any@5", "session any@10", "session recall@10")
NEWEST_FIRST = "newest first"
SHOWN = "evidence shown"
TOKENS = "tokens shown"
PER_1000 = "evidence shown per 1,000 tokens"
WITH_INTERVAL = ("recall@10", "session any@5", "hit@1", "hit@3", SHOWN)
ALL = "all"

_NORMAL_95 = 1.96
_SAMPLES = 1_000
_SEED = 20_250_101


@dataclass(frozen=True, slots=True)
class Ranking:
    """The results of one method for one question.

    Attributes:
        turns: Keys of the first `DEPTH` turns; None if the method ranks sessions only.
        deep: Keys of the first `DEEP` turns, which can come from another search.
        sessions: The best sessions, best first.
    """

    turns: Sequence[str] | None
    deep: Sequence[str]
    sessions: Sequence[int]


@dataclass(slots=True)
class Answer:
    """The scores of all methods for one question.

    Attributes:
        wording: "needs context" if the evidence is clear only from the turns before it, else
            "shared words" if the question has a word of its evidence that is rare in the chat,
            else "other words".
        scores: Metrics by method.
        ranks: Ranks of the evidence from 1, by method and key; None beyond `DEEP`.
    """

    data_set: str
    chat: Chat
    question: Question
    wording: str
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    ranks: dict[str, dict[str, int | None]] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Returns the answer as JSON."""
        question = self.question
        return {
            "set": self.data_set,
            "chat": self.chat.name,
            "half": self.chat.half,
            "kind": question.kind,
            "wording": self.wording,
            "language": question.language,
            "evidence_language": question.evidence_language,
            "question": question.text,
            "asked": question.asked.isoformat(),
            "scores": self.scores,
            "ranks": self.ranks,
        }


@dataclass(frozen=True, slots=True)
class Figure:
    """The mean of a metric; the interval is None unless it was computed."""

    value: float
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one method for one group of questions."""

    questions: int
    metrics: Mapping[str, Figure]

    def plain(self) -> dict[str, Any]:
        """Returns the figures as JSON."""
        values: dict[str, Any] = {name: figure.value for name, figure in self.metrics.items()}
        intervals = {
            name: figure.interval for name, figure in self.metrics.items() if figure.interval
        }
        return {"questions": self.questions, **values, "intervals": intervals}


def score(ranking: Ranking, question: Question, chat: Chat) -> dict[str, float]:
    """Returns the metrics of one ranking."""
    session_of = {turn.key: turn.session for turn in chat.turns}
    evidence_sessions = {session_of[key] for key in question.evidence}
    scores = {
        "session any@5": float(not evidence_sessions.isdisjoint(ranking.sessions[:5])),
        "session any@10": float(not evidence_sessions.isdisjoint(ranking.sessions[:10])),
        "session recall@10": len(evidence_sessions & {*ranking.sessions[:10]})
        / len(evidence_sessions),
    }
    if ranking.turns is None:
        return scores
    evidence, ten = question.evidence, ranking.turns[:DEPTH]
    hits = evidence & {*ten}
    first = next((rank for rank, key in enumerate(ten, start=1) if key in evidence), None)
    scores |= {
        "recall@5": len(evidence & {*ten[:5]}) / len(evidence),
        "recall@10": len(hits) / len(evidence),
        "any@10": float(bool(hits)),
        "all@10": float(len(hits) == len(evidence)),
        "MRR": 0.0 if first is None else 1 / first,
        "hit@1": float(first == 1),
        "hit@3": float(first is not None and first <= 3),
    }
    if question.outdated:
        of_either = [key for key in ranking.deep if key in evidence | question.outdated]
        scores[NEWEST_FIRST] = float(bool(of_either) and of_either[0] in evidence)
    return scores


def ranks(results: Sequence[str], evidence: Iterable[str]) -> dict[str, int | None]:
    """Returns the rank of each key from 1; None for keys that are not among the results."""
    rank_of_key = {key: rank for rank, key in enumerate(results, start=1)}
    return {key: rank_of_key.get(key) for key in sorted(evidence)}


def sessions_of(results: Sequence[str], chat: Chat) -> list[int]:
    """Returns the sessions of turns; a session has the rank of its first turn."""
    session_of = {turn.key: turn.session for turn in chat.turns}
    return list(dict.fromkeys(session_of[key] for key in results))


def groups_of(answer: Answer) -> Iterator[str]:
    """Yields the groups that a question counts in.

    BEAM also has questions that no search for messages answers; they are only in the group of
    their type.
    """
    question = answer.question
    yield f"type: {question.kind}"
    if answer.data_set == "BEAM" and question.kind not in FACTUAL:
        return
    yield ALL
    yield f"shape: {answer.chat.shape}"
    yield f"wording: {answer.wording}"
    asked, about = question.language, question.evidence_language
    if asked == about:
        yield f"language: {asked}"
        if asked != "en":
            yield "languages: same, not English"
    else:
        yield "languages: different"
        yield "languages: English question" if asked == "en" else "languages: English text"


def figures(answers: Sequence[Answer], method: str) -> Figures:
    """Returns the means of a method; every question has the same weight."""
    scores = [answer.scores[method] for answer in answers if method in answer.scores]
    metrics: dict[str, Figure] = {}
    for name in dict.fromkeys(name for entry in scores for name in entry):
        values = [entry[name] for entry in scores if name in entry]
        interval = bootstrap(values) if name in WITH_INTERVAL else None
        metrics[name] = Figure(fmean(values), interval)
    if TOKENS in metrics and metrics[TOKENS].value:
        metrics[PER_1000] = Figure(metrics[SHOWN].value / metrics[TOKENS].value * 1_000)
    return Figures(len(scores), metrics)


def bootstrap(values: Sequence[float]) -> tuple[float, float]:
    """Returns the 95% interval of the mean, by resampling the questions with a fixed seed."""
    numbers = np.asarray(values, dtype=float)
    random = np.random.default_rng(_SEED)
    samples = random.integers(0, len(numbers), (_SAMPLES, len(numbers)))
    low, high = np.percentile(numbers[samples].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def interval(part: int, whole: int) -> tuple[float, float]:
    """Returns Wilson's 95% confidence interval of a share; (0, 1) if `whole` is 0."""
    if not whole:
        return 0.0, 1.0
    share, square = part / whole, _NORMAL_95**2
    middle = share + square / (2 * whole)
    reach = _NORMAL_95 * math.sqrt(share * (1 - share) / whole + square / (4 * whole**2))
    scale = 1 + square / whole
    return max(0.0, (middle - reach) / scale), min(1.0, (middle + reach) / scale)
