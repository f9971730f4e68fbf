"""The interface of rerankers, and the report about one reranking."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

TEXT_TOKENS = 128
"""Maximum number of tokens of a text that a reranker reads, as many as a chunk has.

In a longer text it reads the part with the most words of the query.
"""


@runtime_checkable
class Reranker(Protocol):
    """Scores how well texts answer a query.

    Implementations MUST return the same score for the same query and text, independent of the
    other texts, MUST NOT block the event loop, and MUST stop soon when they are cancelled.
    """

    @property
    def model_id(self) -> str:
        """Identifies the model."""

    async def score(self, query: str, texts: Sequence[str]) -> list[float]:
        """Returns a score for each text, in order; higher is better.

        Scores are log-odds: at 0, the text answers the query with a probability of 50%.
        """


class RerankingOutcome(StrEnum):
    """The outcome of a reranking."""

    DONE = "done"
    OUT_OF_TIME = "out_of_time"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RerankingReport:
    """The report about the reranking of one search.

    Attributes:
        model: The `Reranker.model_id`.
        candidates: How many results the reranker scored.
        outcome: The outcome; unless done, the fused order was kept.
    """

    model: str
    candidates: int
    outcome: RerankingOutcome
