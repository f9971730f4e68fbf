"""Fits the learned order of search results: `python -m benchmarks.retrieval.train_order`.

It fits a linear model (`strata.shared.search.learned_order`) to the questions of the calibration
halves of the short chats and the dialogues, whose texts were written for Strata and have its
licence. For each question the fused matches of a search are compared in pairs: a turn that answers
it should come before one that does not (logistic loss, ridge penalty). Every question counts the
same. The result is written to the file that the product reads, and compared with the order of the
scores: trained on all, and trained on the other data set only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from statistics import fmean
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

from benchmarks.retrieval import short_chats
from benchmarks.retrieval.datasets import Chat, Question, Turn, load
from strata.recall.domain.query_roles import query_role
from strata.recall.search.index import MESSAGES, WHOSE_WEIGHT
from strata.shared.search.embedding import Embedder
from strata.shared.search.embedding.base import MULTILINGUAL_UNRELATED
from strata.shared.search.embedding.chunking import chunk_text
from strata.shared.search.embedding.multilingual import MultilingualEmbedder
from strata.shared.search.fusion import FLOOR, Candidate, FusionConfig, floor_share, fuse
from strata.shared.search.indexing.text_index import CHUNK_TOKENS
from strata.shared.search.learned_order import DEPTH, LearnedOrder, MatchFeatures, shipped_order
from strata.shared.search.surroundings import Place
from strata.shared.search.time_expressions import time_ranges
from strata.shared.search.time_preference import WHEN_WEIGHT, newest_share
from strata.shared.search.vectors.sparse import SparseEncoder
from strata.shared.search.vectors.stop_words import without_stop_words

TRAINED_ON = (short_chats.NAME, short_chats.DIALOGUES)
HALF_CHARS = 200.0
_RIDGE = 0.01
_STEPS = 30
_FUSION = FusionConfig(dense_low=MULTILINGUAL_UNRELATED, floor=FLOOR)
_FILE = Path(str(resources.files("strata.shared.search"))) / "learned_order.json"
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Search:
    """The best matches of a question, in the order of their scores.

    Attributes:
        features: The features of each turn; the first one is the score.
        chars: The characters of each turn.
        answers: Which turns are evidence.
        evidence: How many turns are evidence, found or not.
    """

    features: _Floats
    chars: Sequence[int]
    answers: npt.NDArray[np.bool_]
    evidence: int


class ChatIndex:
    """The vectors of all chats, searched in memory as the engine searches them."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._sparse = SparseEncoder()
        self._document_counts: Counter[int] = Counter()
        self._chunks = 0

    async def read(self, chats: Iterable[Chat]) -> list[ChatVectors]:
        """Embeds the turns and the questions of chats."""
        return [await self._read(chat) for chat in chats]

    async def _read(self, chat: Chat) -> ChatVectors:
        texts, owners = [], []
        for number, turn in enumerate(chat.turns):
            chunks = chunk_text(_text(turn), self._embedder.count_tokens, CHUNK_TOKENS)
            texts += chunks
            owners += [number] * len(chunks)
        terms = [
            dict(zip(v.indices, v.values, strict=True)) for v in map(self._sparse.document, texts)
        ]
        for document in terms:
            self._document_counts.update(document.keys())
        self._chunks += len(terms)
        return ChatVectors(
            chat,
            owners,
            np.array(await self._embedder.embed(texts, "document")),
            np.array(await self._embedder.embed([q.text for q in chat.questions], "query")),
            terms,
        )

    def searches(self, vectors: ChatVectors) -> Iterator[Search]:
        """Yields the searches for all questions about a chat."""
        for number, question in enumerate(vectors.chat.questions):
            cosines = vectors.questions[number] @ vectors.turns.T
            yield self._search(vectors, question, cosines)

    def _search(self, vectors: ChatVectors, question: Question, cosines: _Floats) -> Search:
        idf = {
            term: math.log(1 + (self._chunks - count + 0.5) / (count + 0.5))
            for term in self._sparse.query(question.text).indices
            if (count := self._document_counts[term])
        }
        by_words = [
            sum(weight * terms.get(term, 0.0) for term, weight in idf.items())
            for terms in vectors.terms
        ]
        candidates = [_candidate(vectors.chat, owner, question) for owner in vectors.owners]
        arms = [
            [candidates[at]._replace(score=float(scores[at])) for at in _best(scores)]
            for scores in (cosines, by_words)
        ]
        recorder = _Recorder()
        hits = fuse(
            arms[0],
            arms[1],
            limit=DEPTH,
            depth=MESSAGES.depth,
            config=replace(_FUSION, order=recorder),
            corpus=self._chunks,
            dense_weight=self._embedder.known_share(without_stop_words(question.text)),
            floor_share=floor_share(question.text),
            newest_share=newest_share(question.text),
        )
        return Search(
            recorder.features,
            recorder.chars,
            np.array([hit.document_id in question.evidence for hit in hits], np.bool_),
            len(question.evidence),
        )


_NOTHING = MatchFeatures(*[0.0] * len(MatchFeatures._fields))


class _Recorder:
    """Keeps the features of the matches, and leaves them in the order of their scores."""

    def __init__(self) -> None:
        self.features: _Floats = np.empty((0, len(MatchFeatures._fields)))
        self.chars: Sequence[int] = ()

    def weighted(
        self, matches: Sequence[MatchFeatures], chars: Sequence[int]
    ) -> Sequence[MatchFeatures]:
        self.features, self.chars = np.array(matches), chars
        return [_NOTHING] * len(matches)


@dataclass(frozen=True, slots=True)
class ChatVectors:
    """A chat with its vectors: owners, turns and terms are by chunk."""

    chat: Chat
    owners: Sequence[int]
    turns: _Floats
    questions: _Floats
    terms: Sequence[Mapping[int, float]]


def fit(searches: Iterable[Search], half_chars: float = HALF_CHARS) -> LearnedOrder:
    """Returns the weights that put evidence before other turns most often."""
    pairs, weights = [], []
    for search in searches:
        answers, other = search.features[search.answers], search.features[~search.answers]
        if len(answers) and len(other):
            differences = (answers[:, None, :] - other[None, :, :]).reshape(-1, answers.shape[1])
            pairs.append(differences)
            weights.append(np.full(len(differences), 1 / len(differences)))
    differences, shares = np.concatenate(pairs), np.concatenate(weights)
    shares /= shares.sum()
    scale = np.sqrt((differences**2).mean(axis=0)) + 1e-9
    scaled = differences / scale
    result = np.zeros(scaled.shape[1])
    for _ in range(_STEPS):  # Newton's method
        wrong = 1 / (1 + np.exp(scaled @ result))
        gradient = _RIDGE * result - scaled.T @ (shares * wrong)
        curvature = (scaled * (shares * wrong * (1 - wrong))[:, None]).T @ scaled
        result -= np.linalg.solve(curvature + _RIDGE * np.eye(len(result)), gradient)
    result /= scale
    # The weight of the score is 1.
    names = MatchFeatures._fields[1:]
    relative = (result[1:] / result[0]).tolist()
    return LearnedOrder(dict(zip(names, (round(w, 3) for w in relative), strict=True)), half_chars)


def ordered(search: Search, order: LearnedOrder | None) -> npt.NDArray[np.bool_]:
    """Returns which results are evidence, in the order of the model; None for the scores."""
    if order is None or not len(search.chars):
        return search.answers
    matches = [MatchFeatures(*row) for row in search.features.tolist()]
    values = list(map(sum, order.weighted(matches, search.chars)))
    return search.answers[np.argsort(-np.array(values), kind="stable")]


def figures(searches: Iterable[Search], order: LearnedOrder | None) -> dict[str, float]:
    """Returns recall@5, recall@10 and hit@1."""
    totals: defaultdict[str, list[float]] = defaultdict(list)
    for search in searches:
        answers = ordered(search, order)
        for depth in (5, 10):
            totals[f"recall@{depth}"].append(answers[:depth].sum() / search.evidence)
        totals["hit@1"].append(float(answers[:1].any()))
    return {name: fmean(values) for name, values in totals.items()}


def _text(turn: Turn) -> str:
    return f"{turn.name}:\n{turn.text}" if turn.name and turn.role == "user" else turn.text


def _candidate(chat: Chat, owner: int, question: Question) -> Candidate:
    turn = chat.turns[owner]
    role = query_role(question.text)
    bonus = WHOSE_WEIGHT if role is not None and turn.role == role.value else 0.0
    for time_range in time_ranges(question.text, question.asked, ZoneInfo("UTC")):
        bonus += WHEN_WEIGHT * time_range.holds(turn.time)
    place = Place(chat.name, owner, len(_text(turn)))
    return Candidate(turn.key, 0.0, bonus, place, turn.time.timestamp())


def _best(scores: Sequence[float] | _Floats) -> Sequence[int]:
    order: list[int] = np.argsort(-np.asarray(scores), kind="stable").tolist()
    return order[: MESSAGES.depth]


async def searches(sets: Mapping[str, Iterable[Chat]]) -> dict[str, list[Search]]:
    """Returns the searches for all questions about the calibration halves of data sets."""
    embedder = await MultilingualEmbedder.load()
    try:
        result = {}
        for name, chats in sets.items():
            index = ChatIndex(embedder)
            read = await index.read(chat for chat in chats if chat.half == "calibration")
            result[name] = [search for vectors in read for search in index.searches(vectors)]
        return result
    finally:
        await embedder.close()


def main() -> None:
    """Fits the order, prints what it changes, and writes it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, help="other chats to compare the order on")
    parser.add_argument("--check", action="store_true", help="do not write the file")
    options = parser.parse_args()
    by_set = asyncio.run(
        searches(
            {
                short_chats.NAME: short_chats.short_chats(),
                short_chats.DIALOGUES: short_chats.dialogues(),
                **{path.name: load(path) for path in options.paths},
            }
        )
    )
    order = fit(search for name in TRAINED_ON for search in by_set[name])
    for name, group in by_set.items():
        others = [other for other in TRAINED_ON if other != name]
        elsewhere = fit(search for other in others for search in by_set[other])
        for label, model in (
            ("by score", None),
            ("shipped", shipped_order()),
            ("learned", order),
            (f"learned on {' and '.join(others)}", elsewhere),
        ):
            values = " ".join(f"{k} {v:.3f}" for k, v in figures(group, model).items())
            print(f"{name:14} {label:40} {values}")
    print(order.weights)
    if not options.check:
        content = {
            "trained_on": "calibration halves of the short chats and the dialogues of Strata's"
            " retrieval benchmark, by benchmarks/retrieval/train_order.py",
            "half_chars": order.half_chars,
            "weights": dict(order.weights),
        }
        _FILE.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
