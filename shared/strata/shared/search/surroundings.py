"""Scores a text by its surroundings: its neighbours and its session.

In a chat the answer often does not repeat the words of the question ("And which one did you
take?" / "The blue one."), so a message also counts if those beside it match. Measurements:
``docs/benchmarks/retrieval.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

SESSION_GAP_S = 3_600.0
"""Pause, in seconds, after which the next message of a conversation begins a new session."""
REACH = 3
"""Maximum number of positions between neighbours.

Not every position is indexed: tool calls and their returns come between a question and its answer.
"""

# The share of a session comes from its best texts; each counts half of the one before.
_SESSION_TEXTS = 3


class Place(NamedTuple):
    """The position of a text.

    Attributes:
        group: The conversation or file that it belongs to.
        position: Its number in the group; neighbours have adjacent numbers.
        chars: Its characters.
    """

    group: str
    position: int
    chars: int = 0


@dataclass(frozen=True, slots=True)
class SurroundingWeights:
    """Weights of the surroundings of a text.

    Attributes:
        neighbour: Share of a neighbour's relevance that a short text gets; divided by their
            distance.
        half_chars: Characters of a text that gets half of that. The topic of a long text is in
            the text itself.
        session: Share of the score for words of a session that each of its texts gets.
    """

    neighbour: float = 0.2
    half_chars: int = 600
    session: float = 0.1

    def __post_init__(self) -> None:
        if self.neighbour < 0 or self.session < 0 or self.half_chars <= 0:
            raise ValueError("weights are not negative, and half_chars is positive")


class Scored(NamedTuple):
    """A text and its scores.

    Attributes:
        place: Its place among its neighbours.
        time: When it was stored, in seconds since 1970; 0 for texts without sessions.
        relevance: Its relevance to the query.
        words: The part of the relevance for words.
    """

    place: Place
    time: float
    relevance: float
    words: float


class Surroundings(NamedTuple):
    """The scores of the surroundings of a text.

    Attributes:
        neighbours: The score for its neighbours.
        session: The score for its session.
        best_neighbour: The highest relevance of a direct neighbour.
        before: The highest relevance of a neighbour before it, divided by the distance.
        after: The same for neighbours after it.
        session_meaning: The highest part for the meaning of a text in its session; 0 if no other
            text of that is known.
    """

    neighbours: float = 0.0
    session: float = 0.0
    best_neighbour: float = 0.0
    before: float = 0.0
    after: float = 0.0
    session_meaning: float = 0.0


NOTHING_AROUND = Surroundings()
"""The surroundings of a text without neighbours and session."""


def surroundings_of(
    texts: Mapping[str, Scored], weights: SurroundingWeights
) -> dict[str, Surroundings]:
    """Returns the scores of the surroundings of each text that has any.

    Only the given texts count, which are the candidates of a search. Texts that are not among them
    are not relevant, so that they would add little.

    Args:
        texts: The candidates by id. Each place occurs once.
        weights: The weights.
    """
    groups: dict[str, list[tuple[int, str, Scored]]] = {}
    for name, text in texts.items():
        group = groups.get(text.place.group)
        if group is None:
            group = groups[text.place.group] = []
        group.append((text.place.position, name, text))
    result: dict[str, Surroundings] = {}
    for group in groups.values():
        group.sort()
        for session in _sessions(group):
            _add(result, session, weights)
    return result


def _sessions(group: list[tuple[int, str, Scored]]) -> Iterator[list[tuple[int, str, Scored]]]:
    start, before = 0, group[0][2].time
    for index, (_, _, text) in enumerate(group):
        if text.time - before > SESSION_GAP_S:
            yield group[start:index]
            start = index
        before = text.time
    yield group[start:]


def _add(
    result: dict[str, Surroundings],
    session: list[tuple[int, str, Scored]],
    weights: SurroundingWeights,
) -> None:
    shared = weights.session * _strength(session)
    count = len(session)
    before, after, direct = [0.0] * count, [0.0] * count, [0.0] * count
    for index, (position, _, text) in enumerate(session):
        for other in range(index + 1, count):
            distance = session[other][0] - position
            if distance > REACH:
                break
            relevance = session[other][2].relevance
            after[index] = max(after[index], relevance / distance)
            before[other] = max(before[other], text.relevance / distance)
            if distance == 1:
                direct[index] = max(direct[index], relevance)
                direct[other] = text.relevance
    meaning = max(text.relevance - text.words for _, _, text in session) if count > 1 else 0.0
    for index, (_, name, text) in enumerate(session):
        beside = before[index] + after[index]
        if beside or shared or meaning:
            share = weights.neighbour / (1 + text.place.chars / weights.half_chars)
            result[name] = Surroundings(
                share * beside, shared, direct[index], before[index], after[index], meaning
            )


def _strength(session: list[tuple[int, str, Scored]]) -> float:
    best = sorted((text.words for _, _, text in session if text.words), reverse=True)
    return sum(words * 0.5**rank for rank, words in enumerate(best[:_SESSION_TEXTS]))
