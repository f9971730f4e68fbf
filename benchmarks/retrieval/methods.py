"""The compared methods, each of which answers all questions about a chat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from benchmarks.retrieval.baselines import Bm25, document_of, plain_words, words_of
from benchmarks.retrieval.datasets import Chat, Question
from benchmarks.retrieval.evidence_shown import conversation_search, shown
from benchmarks.retrieval.scoring import DEEP, DEPTH, Answer, Ranking, ranks, score, sessions_of
from benchmarks.retrieval.service import Recall
from strata.api.recall.v1 import message_service_pb2 as pb

HYBRID = "hybrid"
RERANKED = "reranked"
DENSE = "dense"
FULL_TEXT = "full text"
BM25 = "BM25"
BM25_SESSIONS = "BM25 over sessions"
PLAIN_BM25 = "plain BM25"
TOOL = "conversation_search"
# Most turns of a chat that have a rare word.
_RARE = 3
METHODS = (HYBRID, DENSE, FULL_TEXT, BM25, BM25_SESSIONS, PLAIN_BM25)


@dataclass
class Seconds:
    """The durations of searches for ten hits through the service.

    Attributes:
        first: The first search of each question.
        again: The same search again, when the vector of the query is cached.
        reranked: The same search with the reranker.
    """

    first: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    reranked: list[float] = field(default_factory=list)


class ChatBaselines:
    """BM25 over the turns and over the sessions of one chat."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        documents = [document_of(turn) for turn in chat.turns]
        self._words = {turn.key: {*words_of(turn.text, turn.language)} for turn in chat.turns}
        self._holders = Counter(word for words in self._words.values() for word in words)
        by_session: dict[int, list[str]] = {}
        for turn, words in zip(chat.turns, documents, strict=True):
            by_session.setdefault(turn.session, []).extend(words)
        self._sessions = [*by_session]
        self._turns_index = Bm25(documents)
        self._sessions_index = Bm25([*by_session.values()])
        self._plain_index = Bm25([plain_words(turn.text) for turn in chat.turns])

    def rankings(self, question: Question) -> dict[str, Ranking]:
        """Returns the rankings of the baselines."""
        query = words_of(question.text, question.language)
        indices = self._sessions_index.search(query, DEEP)
        return {
            BM25: self._of_turns(self._turns_index.search(query, DEEP)),
            BM25_SESSIONS: Ranking(None, (), [self._sessions[index] for index in indices]),
            PLAIN_BM25: self._of_turns(
                self._plain_index.search(plain_words(question.text), DEEP),
            ),
        }

    def wording(self, question: Question) -> str:
        """Returns the `Answer.wording` of a question."""
        if question.needs_context:
            return "needs context"
        evidence = {word for key in question.evidence for word in self._words[key]}
        shared = evidence & {*words_of(question.text, question.language)}
        rare = any(self._holders[word] <= _RARE for word in shared)
        return "shared words" if rare else "other words"

    def _of_turns(self, indices: Sequence[int]) -> Ranking:
        keys = [self._chat.turns[index].key for index in indices]
        return Ranking(keys[:DEPTH], keys, sessions_of(keys, self._chat))


async def answer_questions(
    recall: Recall, data_set: str, chat: Chat, methods: Collection[str], seconds: Seconds
) -> list[Answer]:
    """Asks all questions about a chat with each of the methods."""
    baselines = ChatBaselines(chat)
    turns = {turn.key: turn for turn in chat.turns}
    answers = []
    for question in chat.questions:
        answer = Answer(data_set, chat, question, baselines.wording(question))
        rankings = baselines.rankings(question) | await _searched(
            recall, chat, question, methods, seconds
        )
        for method in methods:
            if method == TOOL:
                content = await conversation_search(
                    recall.messages, recall.agent_of(chat), question
                )
                evidence = [turns[key] for key in sorted(question.evidence)]
                answer.scores[TOOL] = shown(content, evidence)
                continue
            ranking = rankings[method]
            answer.scores[method] = score(ranking, question, chat)
            if ranking.turns is not None:
                answer.ranks[method] = ranks(ranking.deep, question.evidence)
        answers.append(answer)
    return answers


async def _searched(
    recall: Recall, chat: Chat, question: Question, methods: Collection[str], seconds: Seconds
) -> dict[str, Ranking]:
    """Returns the rankings of the service for the methods that it serves."""
    rankings = {}
    if HYBRID in methods or RERANKED in methods:
        ten, first = await recall.search(chat, question, pb.SEARCH_MODE_HYBRID, DEPTH)
        _, again = await recall.search(chat, question, pb.SEARCH_MODE_HYBRID, DEPTH)
        deep, _ = await recall.search(chat, question, pb.SEARCH_MODE_HYBRID, DEEP)
        seconds.first.append(first)
        seconds.again.append(again)
        rankings[HYBRID] = Ranking(ten, deep, sessions_of(deep, chat))
    if RERANKED in methods:
        # The query's vector is cached by now, so that only the reranker is measured.
        ten, duration = await recall.rerank(chat, question, DEPTH)
        deep, _ = await recall.rerank(chat, question, DEEP)
        seconds.reranked.append(duration)
        rankings[RERANKED] = Ranking(ten, deep, sessions_of(deep, chat))
    if FULL_TEXT in methods:
        ten, _ = await recall.search(chat, question, pb.SEARCH_MODE_FULL_TEXT, DEPTH)
        deep, _ = await recall.search(chat, question, pb.SEARCH_MODE_FULL_TEXT, DEEP)
        rankings[FULL_TEXT] = Ranking(ten, deep, sessions_of(deep, chat))
    if DENSE in methods:
        deep = await recall.by_meaning(chat, question, DEEP)
        rankings[DENSE] = Ranking(deep[:DEPTH], deep, sessions_of(deep, chat))
    return rankings
