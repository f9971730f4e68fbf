"""The interface that every reranker is used through, and what is told of its work."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

TEXT_TOKENS = 128
"""Tokens of a text that are read, unless the settings say otherwise: those of a chunk."""


@runtime_checkable
class Reranker(Protocol):
    """Says how well texts answer a question.

    Implementations MUST give the same score for the same question and text, whatever else is
    asked with them, MUST NOT block the event loop, and stop soon when they are cancelled.
    """

    @property
    def model_id(self) -> str:
        """Names the model."""

    async def score(self, query: str, texts: Sequence[str]) -> list[float]:
        """Returns a score for each text, in order; higher is better.

        Scores are log-odds: 0 is as likely an answer as not.
        """


class Outcome(StrEnum):
    """How reranking went."""

    DONE = "done"
    OUT_OF_TIME = "out_of_time"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Report:
    """What the reranker did in one search.

    Attributes:
        model: Its `Reranker.model_id`.
        candidates: How many results it was given.
        outcome: How it went; unless done, the fused order stands.
    """

    model: str
    candidates: int
    outcome: Outcome
