"""Measures the floor of the search: lost answers, and off-topic queries without results.

``relevance.json`` has two sets of short texts, with queries of several types that a text answers,
and queries about something else. The constants of the floor were chosen on the calibration set and
on the chats of that half (decision 0023); only the figures of the test set are evidence.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from benchmarks.retrieval.datasets import Chat, facts
from benchmarks.retrieval.service import Recall
from strata.api.recall.v1 import message_service_pb2 as pb

FEW = 10
"""Number of texts of the small agent, to which off-topic queries are put as well."""
DEPTH = 5
"""Results that the search tools return by default."""

_SETS = Path(__file__).with_name("relevance.json")


@dataclass(frozen=True, slots=True)
class RelevanceSet:
    """One half of the shipped texts and queries.

    Attributes:
        texts: The texts, as the messages of one agent, and the queries that one of them answers.
        few: The same agent with the first texts only, and no queries.
        off_topic: Queries that none of the texts, and no chat of BEAM, is about, by kind.
    """

    texts: Chat
    few: Chat
    off_topic: Mapping[str, Sequence[str]]


@dataclass(slots=True)
class FloorEffect:
    """The effect of the floor on the searches of some chats.

    Attributes:
        answered: Questions of which a search without the floor returns evidence, by type.
        lost: Of these, how many have no evidence with the floor, by type.
        asked: Off-topic queries, by kind; each is put to every chat.
        nothing: Of these, how many return nothing with the floor, by kind.
        nothing_without: How many return nothing without it.
    """

    answered: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    nothing: Counter[str] = field(default_factory=Counter)
    nothing_without: Counter[str] = field(default_factory=Counter)

    def counts(self) -> dict[str, dict[str, int]]:
        """Returns all counts by name."""
        return {entry.name: dict(getattr(self, entry.name)) for entry in fields(self)}


def relevance_sets() -> dict[str, RelevanceSet]:
    """Returns the shipped sets by half."""
    data: dict[str, dict[str, Any]] = json.loads(_SETS.read_text(encoding="utf-8"))
    sets = {}
    for half, content in data.items():
        texts = facts(f"short texts, {half}", content)
        few = replace(texts, name=f"{texts.name}, {FEW}", turns=texts.turns[:FEW], questions=[])
        sets[half] = RelevanceSet(texts, few, content["off_topic"])
    return sets


async def measure(
    recall: Recall, chats: Iterable[Chat], off_topic: Mapping[str, Sequence[str]]
) -> FloorEffect:
    """Searches for every question and off-topic query, with the floor and without it."""
    effect = FloorEffect()
    for chat in chats:
        for question in chat.questions:
            without = await recall.search_without_floor(chat, question.text, question.asked, DEPTH)
            if question.evidence.isdisjoint(without):
                continue
            keys, _ = await recall.search(chat, question, pb.SEARCH_MODE_HYBRID, DEPTH)
            effect.answered[question.kind] += 1
            effect.lost[question.kind] += question.evidence.isdisjoint(keys)
        now = chat.turns[-1].time
        for kind, queries in off_topic.items():
            for query in queries:
                results = await recall.search_text(chat, query, now, DEPTH)
                nearest = await recall.search_without_floor(chat, query, now, DEPTH)
                effect.asked[kind] += 1
                effect.nothing[kind] += not results
                effect.nothing_without[kind] += not nearest
    return effect
