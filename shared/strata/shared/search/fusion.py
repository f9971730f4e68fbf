"""Fuses two rankings into one: search by meaning (dense) and search by words (sparse).

The fused score is ``dense + weight x words``, both on a scale from 0 to 1, plus a bonus for
preferences. A weighted sum of scores beats rank fusion on short facts and on long chats; the
numbers are in ``docs/benchmarks/retrieval.md``. It is done here and not in the engine, because
the engine's fusion does not return the ranks.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

FLOOR = 0.2
"""Least score of a document that is related to a query; decision 0023 has the measurements."""
SHORT_QUERY_WORDS = 3
"""Most words of a short query."""
SHORT_QUERY_SHARE = 0.75
"""Part of the floor that applies to short queries.

A word such as "city" names a topic: texts about it are less similar to it than to a question.
"""

_RRF_K = 60
_NO_MATCH = (None, None)


class Candidate(NamedTuple):
    """A chunk that one arm of the search found; ``bonus`` is the score for preferences."""

    document_id: str
    score: float
    bonus: float = 0.0


@dataclass(frozen=True, slots=True)
class FusionConfig:
    """The weights of the two arms, and the floor.

    Attributes:
        sparse_weight: Weight of the words; that of the meaning is 1.
        half_words: Number of matching words, each as rare as a word of a single text, that gives
            half of the full score for words. The score is not relative to the best hit: if query
            and texts share only common words, the best hit is still a poor one.
        dense_low: Cosine that counts as unrelated: 0 for the default model; with models of the E5
            family all cosines are above 0.7.
        dense_high: Cosine that counts as equal.
        floor: Least score by meaning and weighted words, without the bonus, for a query of more
            than `SHORT_QUERY_WORDS` words; documents below it count as unrelated.
    """

    sparse_weight: float = 1.0
    half_words: float = 3.0
    dense_low: float = 0.0
    dense_high: float = 1.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.sparse_weight < 0 or self.half_words <= 0 or self.dense_low >= self.dense_high:
            raise ValueError("weights are not negative and the dense range is not empty")


@dataclass(frozen=True, slots=True)
class Hit:
    """A matching document with its scores.

    Attributes:
        document_id: The document.
        score: The fused score that the hits are ordered by.
        vector_rank: Rank in the search by meaning, from 1; None if that did not find it.
        fts_rank: Rank in the search by words, from 1; None if that did not find it.
        vector_score: Cosine, as returned by the engine.
        fts_score: BM25, as returned by the engine; comparable within one query only.
        bonus: The part of the score for preferences.
        meaning: The part for the meaning, from 0 (unrelated) to 1 (equal). Unlike cosines it is
            comparable between models.
        words: The part for the words, before weighting, from 0 to 1.
        weak: The score for meaning and words is below the floor of the query.
    """

    document_id: str
    score: float
    vector_rank: int | None
    fts_rank: int | None
    vector_score: float | None
    fts_score: float | None
    bonus: float = 0.0
    meaning: float = 0.0
    words: float = 0.0
    weak: bool = False

    @property
    def rrf_score(self) -> float:
        """The reciprocal rank fusion of both ranks (k = 60), for clients that expect it."""
        ranks = (self.vector_rank, self.fts_rank)
        return sum(1 / (_RRF_K + rank) for rank in ranks if rank is not None)


class _ScoredDocument(NamedTuple):
    """A document above the floor: its sort key, its scores, and rank and candidate of each arm."""

    order: tuple[float, float, float, str]
    by_dense: float
    by_sparse: float
    vector_rank: int | None
    meaning: Candidate | None
    fts_rank: int | None
    words: Candidate | None


def rarest_word_score(corpus: int) -> float:
    """Returns the BM25 score of a word that a single chunk of the corpus contains (its IDF)."""
    return math.log(1 + (max(corpus, 1) - 0.5) / 1.5)


def floor_share(query: str) -> float:
    """Returns the part of the floor that applies to a query, by its number of words."""
    return SHORT_QUERY_SHARE if len(query.split()) <= SHORT_QUERY_WORDS else 1.0


def fuse(
    dense: Sequence[Candidate],
    sparse: Sequence[Candidate],
    *,
    limit: int,
    depth: int,
    config: FusionConfig,
    corpus: int,
    dense_weight: float = 1.0,
    floor_share: float = 1.0,
    weak: bool = False,
) -> list[Hit]:
    """Ranks the documents of both arms.

    Args:
        dense: Candidates by meaning, in any order; empty if that arm was not used.
        sparse: Candidates by words, in any order; empty if that arm was not used.
        limit: Most hits to return.
        depth: Number of candidates that each arm was asked for.
        config: Weights and floor.
        corpus: Number of chunks over which the rarity of words was counted.
        dense_weight: Weight of the meaning: the share of the query's words that the model knows.
        floor_share: Part of `FusionConfig.floor` that applies to the query; see `floor_share`.
        weak: Also return documents below the floor, marked as weak.

    Returns:
        At most one hit per document. Ties are broken by cosine, by the score for words, and by the
        smaller id, so that the result does not depend on the order of the input.
    """
    by_meaning = _ranked(dense)
    # Candidates without a word of the query are dropped: ranking them lowers recall at 1 from
    # .41 to .10.
    by_words = _ranked(hit for hit in sparse if hit.score > 0)
    # If the list was cut at `depth`, the cosine of a missing document is at most that of the last
    # one; this bound is used in its place.
    cut = len(dense) >= depth
    unseen = min((hit.score for hit in dense), default=0.0) if cut else config.dense_low
    floor = config.floor * floor_share
    half = config.half_words * rarest_word_score(corpus)

    # Only returned documents become `Hit`s, because most candidates are not returned.
    documents: list[_ScoredDocument] = []
    for document_id in by_meaning.keys() | by_words.keys():
        vector_rank, meaning = by_meaning.get(document_id, _NO_MATCH)
        fts_rank, words = by_words.get(document_id, _NO_MATCH)
        source = meaning or words
        assert source is not None  # the id comes from one of the two
        by_dense = _dense_score(meaning.score if meaning else unseen, config) if dense else 0.0
        by_dense *= dense_weight
        by_sparse = words.score / (words.score + half) if words else 0.0
        relevance = by_dense + config.sparse_weight * by_sparse
        if relevance < floor and not weak:
            continue
        score = relevance + source.bonus
        cosine = meaning.score if meaning else -math.inf
        order = (-score, -cosine, -words.score if words else 0.0, document_id)
        documents.append(
            _ScoredDocument(order, by_dense, by_sparse, vector_rank, meaning, fts_rank, words)
        )
    documents.sort(key=attrgetter("order"))
    return [_hit(document, config.sparse_weight, floor) for document in documents[:limit]]


def merge_rankings(groups: Sequence[Sequence[Hit]], limit: int) -> list[Hit]:
    """Merges the hits of several models, each with documents of its own, into one ranking.

    Ranks are assigned again over the hits of all models, so that they are unique.

    Args:
        groups: The uncut hits of each model; a document is in one group only.
        limit: Most hits to return.
    """
    hits = [hit for group in groups for hit in group]
    by_meaning = sorted(
        (hit for hit in hits if hit.vector_rank is not None),
        key=lambda hit: (-hit.meaning, hit.vector_rank, hit.document_id),
    )
    by_words = sorted(
        (hit for hit in hits if hit.fts_rank is not None),
        key=lambda hit: (-hit.words, hit.fts_rank, hit.document_id),
    )
    vector_ranks = {hit.document_id: rank for rank, hit in enumerate(by_meaning, start=1)}
    fts_ranks = {hit.document_id: rank for rank, hit in enumerate(by_words, start=1)}
    hits.sort(key=lambda hit: (-hit.score, -hit.meaning, -hit.words, hit.document_id))
    return [
        replace(
            hit,
            vector_rank=vector_ranks.get(hit.document_id),
            fts_rank=fts_ranks.get(hit.document_id),
        )
        for hit in hits[:limit]
    ]


def _hit(document: _ScoredDocument, sparse_weight: float, floor: float) -> Hit:
    order, by_dense, by_sparse, vector_rank, meaning, fts_rank, words = document
    hit = meaning or words
    assert hit is not None
    return Hit(
        document_id=hit.document_id,
        score=-order[0],
        vector_rank=vector_rank,
        fts_rank=fts_rank,
        vector_score=meaning.score if meaning else None,
        fts_score=words.score if words else None,
        bonus=hit.bonus,
        meaning=by_dense,
        words=by_sparse,
        weak=by_dense + sparse_weight * by_sparse < floor,
    )


def _dense_score(cosine: float, config: FusionConfig) -> float:
    scaled = (cosine - config.dense_low) / (config.dense_high - config.dense_low)
    return min(1.0, max(0.0, scaled))


def _ranked(candidates: Iterable[Candidate]) -> dict[str, tuple[int, Candidate]]:
    """Returns the best chunk of each document, with the document's rank."""
    ordered = sorted(candidates, key=lambda hit: (-hit.score, hit.document_id))
    result: dict[str, tuple[int, Candidate]] = {}
    for hit in ordered:
        if hit.document_id not in result:
            result[hit.document_id] = (len(result) + 1, hit)
    return result
