"""Reorders the best matches with weights that were learned from questions with known answers.

In chats of short messages a message alone shows little about its relevance; the messages before it
show more. `benchmarks/retrieval/train_order.py` fits the weights of a linear model for it
(decision 0135). The set of scores does not change: the same scores are reassigned in the new order,
because they are compared with scores of other sources.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from statistics import median
from typing import NamedTuple, Protocol

DEPTH = 50
"""How many of the best matches are reordered."""

MOST_CHARS = 200
"""Longer texts count as texts of this length: a long text is not relevant to every question."""

_STEEPNESS = 4
_FILE = "learned_order.json"


class MatchFeatures(NamedTuple):
    """The features from which the order of a match is computed.

    Attributes:
        score: The fused score.
        meaning: The part of it for the meaning, from 0 to 1.
        bonus: The part of it for preferences: the time and the speaker that the query names.
        before: The best relevance of a text up to `REACH` positions before it, by distance.
        after: The same for the texts after it.
        session: The score for words of its session.
        session_meaning: The best part for the meaning among the texts of its session: a session
            about something else seldom has the answer.
        length: The logarithm of its characters, of at most `MOST_CHARS`. The shortest messages
            ("Oh no.") seldom answer a question.
        recency: Its place in time among the matches, from 0 (oldest) to 1, times the share of the
            query that asks for the present.
    """

    score: float
    meaning: float
    bonus: float
    before: float
    after: float
    session: float
    session_meaning: float
    length: float
    recency: float


class MatchOrder(Protocol):
    """Orders the best matches of a search."""

    def weighted(
        self, matches: Sequence[MatchFeatures], chars: Sequence[int]
    ) -> Sequence[MatchFeatures]:
        """Returns what each feature adds to the value of a match; the greatest value comes first.

        Args:
            matches: The matches, in the order of their scores.
            chars: The characters of their texts.
        """
        ...


@dataclass(frozen=True, slots=True)
class LearnedOrder:
    """A linear model of the order of matches.

    Attributes:
        weights: The weights of the features but the score, whose weight is 1, by name.
        half_chars: Median length of the matches at which the weights count half; at twice the
            length they count a seventeenth. A long text contains its own context, so its order
            needs no correction.
    """

    weights: Mapping[str, float]
    half_chars: float

    def __post_init__(self) -> None:
        if set(self.weights) != {*MatchFeatures._fields[1:]} or self.half_chars <= 0:
            raise ValueError(
                "there must be one weight for each feature, and half_chars must be positive"
            )

    def weighted(
        self, matches: Sequence[MatchFeatures], chars: Sequence[int]
    ) -> list[MatchFeatures]:
        """See `MatchOrder.weighted`."""
        share = 1 / (1 + (median(chars) / self.half_chars) ** _STEEPNESS)
        weights = [1.0, *(share * self.weights[name] for name in MatchFeatures._fields[1:])]
        return [MatchFeatures(*map(operator.mul, weights, match)) for match in matches]


@cache
def shipped_order() -> LearnedOrder:
    """Returns the order that this release was measured with."""
    file = resources.files("strata.shared.search") / _FILE
    stored = json.loads(file.read_text("utf-8"))
    return LearnedOrder(stored["weights"], stored["half_chars"])
