"""The check before a switch: whether the new index finds stored texts as well as the old one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

from strata.protocol.errors import FailedPreconditionError
from strata.shared.logs import get_logger
from strata.shared.search.indexing.generations import Serving
from strata.shared.search.indexing.text_index import TextIndex
from strata.shared.search.reindexing.state import FoundCounts
from strata.shared.search.vectors.index import Where

_QUESTION_WORDS = 12
_FEWEST_WORDS = 4
_QUESTION_CHARS = 200
_AMONG = 10
_CHANCE = 0.05
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StoredText:
    """A stored text that the check searches for."""

    project_id: str
    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of the check.

    Attributes:
        share: How many of the texts each index found.
        gained: How many of them only the new index found.
    """

    share: FoundCounts
    gained: int = 0

    @property
    def lost(self) -> int:
        """How many of the texts only the old index found."""
        return self.share.old - (self.share.new - self.gained)


async def compare(
    old: tuple[TextIndex, Serving],
    new: tuple[TextIndex, Serving],
    texts: Sequence[StoredText],
    where: Where,
) -> Comparison:
    """Returns how many texts each index finds by meaning, from a part of each text.

    Search by words is left out: it does not depend on the model and would hide useless vectors.

    Args:
        old: The serving index and generation.
        new: The index and generation that are to serve.
        texts: Texts that have to be among the best ten.
        where: Conditions of the searches.

    Raises:
        UnavailableError: The engine or a model cannot be reached.
    """
    found_old = found_new = gained = 0
    for stored in texts:
        by_old, by_new = False, await _finds(*new, stored, where)
        try:
            by_old = await _finds(*old, stored, where)
        except FailedPreconditionError as error:
            # Its model may have been removed from the settings, which can be why it is replaced.
            _log.warning("the old index cannot be queried", reason=error.reason.value)
        found_old += by_old
        found_new += by_new
        gained += by_new and not by_old
    return Comparison(FoundCounts(len(texts), found_old, found_new), gained)


def refusal_reason(comparison: Comparison, least: float) -> str:
    """Returns why the new index may not serve; empty if it may.

    If many texts are similar, the best ten are partly random, and each index finds some that the
    other does not. So a new index that finds less may still serve if its losses are not
    significant: a one-sided sign test over the texts that only one of both found. This needs texts
    that only the new index found.

    Args:
        comparison: The result of the check.
        least: Share of the old index's finds that the new index has to find.
    """
    share = comparison.share
    needed = max(least * share.old, 1.0 if share.asked else 0.0)
    if share.new >= needed or (
        comparison.gained and _by_chance(comparison.lost, comparison.gained)
    ):
        return ""
    return (
        f"Of {share.asked} stored texts the new index found {share.new}, the serving one"
        f" {share.old}; at least {needed:.0f} are required."
    )


def question(text: str) -> str:
    """Returns the query for a text: half of a short text, some words of a long one.

    The whole text would be found by its equal vector, even with a useless model.
    """
    words = text.split()
    if len(words) < _FEWEST_WORDS:
        return _middle(text, max(1, len(text) // 2))
    count = min(_QUESTION_WORDS, len(words) // 2)
    start = (len(words) - count) // 2
    return " ".join(words[start : start + count])[:_QUESTION_CHARS]


def _middle(text: str, chars: int) -> str:
    start = (len(text) - chars) // 2
    return text[start : start + min(chars, _QUESTION_CHARS)]


def _by_chance(lost: int, gained: int) -> bool:
    throws = lost + gained
    as_bad = sum(comb(throws, heads) for heads in range(lost, throws + 1))
    return as_bad > _CHANCE * (1 << throws)


async def _finds(texts: TextIndex, within: Serving, stored: StoredText, where: Where) -> bool:
    hits = await texts.search(
        stored.project_id, question(stored.text), where, _AMONG, words=False, within=within
    )
    return stored.id in [hit.document_id for hit in hits]
