"""Fuses two rankings into one: search by meaning (dense) and search by words (sparse).

The relevance of a document is ``dense + weight x words``, both on a scale from 0 to 1. Its score
also has shares of the relevance of its surroundings (`surroundings`), a bonus for
preferences, and one for new documents if the query asks for the present. The best are put into the
order that was learned for texts of their length (`learned_order`). A weighted sum of scores
beats rank fusion on short facts and on long chats; the numbers are in
``docs/benchmarks/retrieval.md``. It is done here and not in the engine, because the engine's
fusion does not return the ranks.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import NamedTuple

from strata.shared.search.learned_order import (
    DEPTH,
    MOST_CHARS,
    MatchFeatures,
    MatchOrder,
    shipped_order,
)
from strata.shared.search.short_queries import is_short
from strata.shared.search.surroundings import (
    NOTHING_AROUND,
    Place,
    Scored,
    Surroundings,
    SurroundingWeights,
    surroundings_of,
)

FLOOR = 0.2
"""Minimum score of a document that is related to a query; decision 0023 has the measurements."""
SHORT_QUERY_SHARE = 0.6
"""Part of the floor that applies to short queries.

A word such as "city" names a topic: texts about it are less similar to it than to a question.
"""

# A document counts as a good match, so that its age matters, from this share of the best score.
_GOOD_MATCH = 0.8

# An answer may say little of what it is about if the question before it does.
_FLOOR_BESIDE_MATCH = 0.75
# If the best document is this many floors above zero, the query is about something that is stored,
# and others count from this part of the floor, if they are put into the learned order.
_CLEAR_MATCH = 1.5
_FLOOR_BELOW_CLEAR_MATCH = 0.5

_RRF_K = 60
_NO_MATCH = (None, None)


class Candidate(NamedTuple):
    """A chunk that one arm of the search found.

    Attributes:
        document_id: The document of the chunk.
        score: Cosine or BM25 score.
        bonus: The score for preferences.
        place: The place of the document among its neighbours; None if it has none, or its place is
          not known.
        time: When it was stored, in seconds since 1970; 0 if that does not matter.
    """

    document_id: str
    score: float
    bonus: float = 0.0
    place: Place | None = None
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class FusionConfig:
    """The weights of the two arms, and the floor.

    Attributes:
        sparse_weight: Weight of the match by words; the match by meaning has the weight 1.
        half_words: Number of matching words, each as rare as a word of a single text, that gives
            half of the full score for words. The score is not relative to the best hit: if query
            and texts share only common words, the best hit is still a poor one.
        dense_low: Cosine that counts as unrelated: 0 for the default model; with models of the E5
            family all cosines are above 0.7.
        dense_high: Cosine that counts as equal.
        floor: Minimum relevance for a query that is not short; documents below it count as
            unrelated. Three quarters are enough for a document whose direct neighbour reaches it,
            and half if the best document has one and a half times the floor.
        surroundings: Weights of the surroundings of a document.
        newest: Bonus of the newest good match if the query asks for the present; older ones get
            less, the oldest none.
        order: Orders the best documents; None leaves them in the order of their scores.
    """

    sparse_weight: float = 0.5
    half_words: float = 5.0
    dense_low: float = 0.0
    dense_high: float = 1.0
    floor: float = 0.0
    surroundings: SurroundingWeights = field(default_factory=SurroundingWeights)
    newest: float = 0.2
    order: MatchOrder | None = field(default_factory=shipped_order)

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
        surroundings: The parts for its surroundings.
        newest: The part for being new, if the query asks for the present.
        earlier_rank: Its rank before the learned order, from 1; 0 if that did not move it.
        learned: Contribution of each feature to the value for the learned order; None without
            such a value.
        weak: It is below the floor of the query.
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
    surroundings: Surroundings = NOTHING_AROUND
    newest: float = 0.0
    earlier_rank: int = 0
    learned: MatchFeatures | None = None
    weak: bool = False

    @property
    def rrf_score(self) -> float:
        """The reciprocal rank fusion of both ranks (k = 60), for clients that expect it."""
        ranks = (self.vector_rank, self.fts_rank)
        return sum(1 / (_RRF_K + rank) for rank in ranks if rank is not None)


@dataclass(slots=True)
class _ScoredDocument:
    """A document with its scores, and rank and candidate of each arm."""

    by_dense: float
    by_sparse: float
    relevance: float
    vector_rank: int | None
    meaning: Candidate | None
    fts_rank: int | None
    words: Candidate | None
    surroundings: Surroundings = NOTHING_AROUND
    score: float = 0.0
    newest: float = 0.0
    earlier_rank: int = 0
    learned: MatchFeatures | None = None
    weak: bool = False

    @property
    def source(self) -> Candidate:
        """The candidate of either arm."""
        candidate = self.meaning or self.words
        assert candidate is not None  # one of the arms found it
        return candidate

    @property
    def order(self) -> tuple[float, float, float, str]:
        """The sort key."""
        cosine = self.meaning.score if self.meaning else -math.inf
        words = -self.words.score if self.words else 0.0
        return -self.score, -cosine, words, self.source.document_id


def rarest_word_score(corpus: int) -> float:
    """Returns the BM25 score of a word that a single chunk of the corpus contains (its IDF)."""
    return math.log(1 + (max(corpus, 1) - 0.5) / 1.5)


def floor_share(query: str) -> float:
    """Returns the part of the floor that applies to a query."""
    return SHORT_QUERY_SHARE if is_short(query) else 1.0


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
    newest_share: float = 0.0,
    weak: bool = False,
) -> list[Hit]:
    """Ranks the documents of both arms.

    Args:
        dense: Candidates by meaning, in any order; empty if that arm was not used.
        sparse: Candidates by words, in any order; empty if that arm was not used.
        limit: Maximum number of hits to return.
        depth: Number of candidates requested from each arm.
        config: Weights and floor.
        corpus: Number of chunks over which the rarity of words was counted.
        dense_weight: Weight of the meaning: the share of the query's words that the model knows.
        floor_share: Part of `FusionConfig.floor` that applies to the query; see `floor_share`.
        newest_share: Part of `FusionConfig.newest` that applies to the query: 0 if it does not ask
            for the present.
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
    documents: dict[str, _ScoredDocument] = {}
    for document_id in by_meaning.keys() | by_words.keys():
        vector_rank, meaning = by_meaning.get(document_id, _NO_MATCH)
        fts_rank, words = by_words.get(document_id, _NO_MATCH)
        by_dense = _dense_score(meaning.score if meaning else unseen, config) if dense else 0.0
        by_dense *= dense_weight
        by_sparse = words.score / (words.score + half) if words else 0.0
        relevance = by_dense + config.sparse_weight * by_sparse
        documents[document_id] = _ScoredDocument(
            by_dense, by_sparse, relevance, vector_rank, meaning, fts_rank, words
        )
    _add_surroundings(documents, config)
    best = max((document.relevance for document in documents.values()), default=0.0)
    below_clear_match = config.order is not None and best >= _CLEAR_MATCH * floor
    share = _FLOOR_BELOW_CLEAR_MATCH if below_clear_match else 1.0
    related: list[_ScoredDocument] = []
    for document in documents.values():
        around = document.surroundings
        beside_match = around.best_neighbour >= floor
        least = floor * (min(share, _FLOOR_BESIDE_MATCH) if beside_match else share)
        document.weak = document.relevance < least
        if document.weak and not weak:
            continue
        bonus = document.source.bonus
        document.score = document.relevance + around.neighbours + around.session + bonus
        related.append(document)
    if newest_share:
        _prefer_newest(related, newest_share * config.newest)
    related.sort(key=attrgetter("order"))
    if config.order is not None:
        _put_in_order(related, config.order, newest_share)
    return [_hit(document) for document in related[:limit]]


def merge_rankings(groups: Sequence[Sequence[Hit]], limit: int) -> list[Hit]:
    """Merges the hits of several models, each with its own documents, into one ranking.

    Ranks are assigned again over the hits of all models, so that they are unique.

    Args:
        groups: The uncut hits of each model; a document is in one group only.
        limit: Maximum number of hits to return.
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


def _add_surroundings(documents: Mapping[str, _ScoredDocument], config: FusionConfig) -> None:
    texts = {
        document_id: Scored(
            place,
            document.source.time,
            document.relevance,
            config.sparse_weight * document.by_sparse,
        )
        for document_id, document in documents.items()
        if (place := document.source.place) is not None
    }
    for document_id, around in surroundings_of(texts, config.surroundings).items():
        documents[document_id].surroundings = around


def _prefer_newest(documents: Sequence[_ScoredDocument], bonus: float) -> None:
    """Adds the bonus for being new to the good matches, by their order in time."""
    least = _GOOD_MATCH * max((document.score for document in documents), default=0.0)
    good = [document for document in documents if document.score >= least and not document.weak]
    recency = _recency(good)
    for document in good:
        document.newest = bonus * recency[document.source.time]
        document.score += document.newest


def _recency(documents: Iterable[_ScoredDocument]) -> dict[float, float]:
    """Returns the position of each time between the documents' times, from 0 (oldest) to 1.

    Documents that were stored together, such as an import, are equally new.
    """
    times = sorted({document.source.time for document in documents})
    return {time: place / max(1, len(times) - 1) for place, time in enumerate(times)}


def _put_in_order(related: list[_ScoredDocument], order: MatchOrder, newest_share: float) -> None:
    """Puts the best documents into the learned order and reassigns their scores."""
    best = [document for document in related if not document.weak][:DEPTH]
    places = [place for document in best if (place := document.source.place) is not None]
    # Documents that were indexed by an earlier release have no length.
    if not best or len(places) < len(best) or not all(place.chars for place in places):
        return
    recency = _recency(best)
    features = [
        MatchFeatures(
            document.score,
            document.by_dense,
            document.source.bonus,
            document.surroundings.before,
            document.surroundings.after,
            document.surroundings.session,
            max(document.by_dense, document.surroundings.session_meaning),
            math.log(min(place.chars, MOST_CHARS)),
            newest_share * recency[document.source.time],
        )
        for document, place in zip(best, places, strict=True)
    ]
    weighted = order.weighted(features, [place.chars for place in places])
    values = list(map(sum, weighted))
    scores = [document.score for document in best]
    # The sort is stable: documents of equal value keep their order.
    ranks = sorted(range(len(best)), key=lambda rank: -values[rank])
    for new, old in enumerate(ranks):
        best[old].score = scores[new]
        best[old].earlier_rank = 0 if new == old else old + 1
        best[old].learned = weighted[old]
    related.sort(key=attrgetter("order"))


def _hit(document: _ScoredDocument) -> Hit:
    meaning, words = document.meaning, document.words
    return Hit(
        document_id=document.source.document_id,
        score=document.score,
        vector_rank=document.vector_rank,
        fts_rank=document.fts_rank,
        vector_score=meaning.score if meaning else None,
        fts_score=words.score if words else None,
        bonus=document.source.bonus,
        meaning=document.by_dense,
        words=document.by_sparse,
        surroundings=document.surroundings,
        newest=document.newest,
        earlier_rank=document.earlier_rank,
        learned=document.learned,
        weak=document.weak,
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
