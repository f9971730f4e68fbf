"""Shows found messages with the messages before and after them, within a budget.

Adjacent hits become one excerpt. The best hit of an excerpt is shown with all
its fields, the messages around it with time, role and content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from strata.api.common.v1 import message_pb2 as common
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.shared.json_text import indented_json, quoted
from strata.shared.tool_returns import FUNCTION_RETURN_CHAR_LIMIT

DEFAULT_BYTES = 20_000
"""UTF-8 bytes that found messages may take if the caller gives no limit."""
MOST_BYTES = FUNCTION_RETURN_CHAR_LIMIT - 1_000
"""UTF-8 bytes that they may take in any case: a longer return would be truncated as text."""

SHORT_CHARS = 300
"""Characters of a neighbour: it gives the context of a hit, for which the beginning is enough."""

# A shorter part of a message is not useful.
_LEAST_BYTES = 80
# Spaces before each line of a message in a packed return, and the lines around the messages of one
# side, which may be a single one.
_INDENT = 10
_AROUND_LIST = len('          "before": [\n          ],\n')
_CUT = " [...]"


@dataclass(slots=True)
class Excerpt:
    """A hit with the messages around it.

    Attributes:
        hit: The best hit.
        before: Messages before it, in their order.
        after: Messages after it, in their order.
    """

    hit: message_pb.MessageHit
    before: list[common.Message] = field(default_factory=list)
    after: list[common.Message] = field(default_factory=list)


def excerpts_of(hits: Sequence[message_pb.MessageHit]) -> list[Excerpt]:
    """Returns the excerpts of hits, in the order of their best hits.

    Hits that have a message in common, as hit or as neighbour, are in one excerpt. Each message is
    in one excerpt.

    Args:
        hits: The hits, best first, with their neighbours.
    """
    groups: list[tuple[list[message_pb.MessageHit], dict[str, common.Message]]] = []
    for hit in hits:
        messages = {message.id: message for message in (hit.message, *hit.neighbours)}
        members = [hit]
        separate = []
        for others, sequences in groups:
            if messages.keys() & sequences.keys():
                members = others + members
                messages = sequences | messages
            else:
                separate.append((others, sequences))
        groups = [*separate, (members, messages)]
    rank = {hit.message.id: number for number, hit in enumerate(hits)}
    excerpts = []
    for members, messages in groups:
        best = min(members, key=lambda hit: rank[hit.message.id])
        ordered = sorted(messages.values(), key=lambda message: message.sequence)
        middle = best.message.sequence
        excerpts.append(
            Excerpt(
                best,
                [message for message in ordered if message.sequence < middle],
                [message for message in ordered if message.sequence > middle],
            )
        )
    return sorted(excerpts, key=lambda excerpt: rank[excerpt.hit.message.id])


def show(
    excerpts: Sequence[Excerpt],
    describe_hit: Callable[[message_pb.MessageHit], dict[str, Any]],
    describe_neighbour: Callable[[common.Message], dict[str, Any]],
    *,
    matches: Sequence[str],
    most_bytes: int = 0,
) -> tuple[list[dict[str, Any]], list[common.Message]]:
    """Returns the excerpts as the model sees them, and the messages that are in them.

    All matches come before the messages around them. Long matches are cut so that further matches
    fit; those with the lowest ranks are left out if all are too many. The remaining space goes to
    neighbours, those next to a match first. A truncated message has a note.

    Args:
        excerpts: The excerpts, best first.
        describe_hit: Describes a hit; the description has a ``content``.
        describe_neighbour: Describes another message; likewise.
        matches: Ids of all hits, best first. Those that are not the best of their excerpt are
            described as neighbours.
        most_bytes: UTF-8 bytes that all descriptions may take as indented JSON; 0 for the default.
            The best hit is shown in any case.
    """
    budget = min(most_bytes or DEFAULT_BYTES, MOST_BYTES)
    items: dict[str, dict[str, Any]] = {}
    messages_by_id: dict[str, common.Message] = {}
    for excerpt in excerpts:
        best = excerpt.hit.message
        messages_by_id |= {item.id: item for item in (best, *excerpt.before, *excerpt.after)}
        items[best.id] = describe_hit(excerpt.hit)
    ranked = [items.get(name) or describe_neighbour(messages_by_id[name]) for name in matches]
    count, remaining_bytes = _fit_matches(ranked, budget)
    shown_matches = dict(zip(matches[:count], ranked, strict=False))
    for excerpt in excerpts:
        if excerpt.hit.message.id not in shown_matches:
            break
        for message in _nearest_first(excerpt):
            if message.id in matches:
                continue
            item = describe_neighbour(message)
            item["content"] = shortened(item["content"])
            if item["content"] and (size := _fit(item, remaining_bytes)):
                remaining_bytes -= size
                shown_matches[message.id] = item
    return [
        shown_matches[excerpt.hit.message.id] | _around(excerpt, shown_matches)
        for excerpt in excerpts
        if excerpt.hit.message.id in shown_matches
    ], [messages_by_id[name] for name in shown_matches]


def shortened(text: str) -> str:
    """Returns the beginning of a text that is shown for context."""
    return text if len(text) <= SHORT_CHARS else text[:SHORT_CHARS].rstrip() + _CUT


def _around(excerpt: Excerpt, shown_matches: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    sides = {"before": excerpt.before, "after": excerpt.after}
    described = {
        name: [shown_matches[message.id] for message in messages if message.id in shown_matches]
        for name, messages in sides.items()
    }
    return {name: items for name, items in described.items() if items}


def _nearest_first(excerpt: Excerpt) -> Iterator[common.Message]:
    sides = (reversed(excerpt.before), excerpt.after)
    for pair in zip_longest(*sides):
        yield from (message for message in pair if message is not None)


def _fit_matches(items: Sequence[dict[str, Any]], budget: int) -> tuple[int, int]:
    """Cuts the contents of as many matches as fit, at least one.

    Returns:
        The number of matches that fit, and the bytes that are left.
    """
    fixed = [_size(item | {"content": ""}) for item in items]
    # More of a text than the budget cannot be shown, and need not be measured.
    texts = [_json_size(item["content"][:budget]) for item in items]
    remaining_bytes, count = budget, 0
    for item_bytes, text_bytes in zip(fixed, texts, strict=True):
        least = item_bytes + min(text_bytes, _LEAST_BYTES)
        if count and least > remaining_bytes:
            break
        remaining_bytes -= least
        count += 1
    remaining_bytes = budget - sum(fixed[:count])
    # Space that short messages leave unused goes to the long ones, but never more than half of the
    # budget to one of them.
    for position, index in enumerate(sorted(range(count), key=texts.__getitem__)):
        share = min(max(remaining_bytes // (count - position), _LEAST_BYTES), budget // 2)
        items[index]["content"] = _cut(items[index]["content"], max(share, _LEAST_BYTES))
        remaining_bytes -= _json_size(items[index]["content"])
    return count, remaining_bytes


def _fit(item: dict[str, Any], most_bytes: int) -> int:
    """Cuts the content of an item so that it fits.

    Returns:
        The bytes of the item; 0 if too little of its content would be left.
    """
    fixed = _size(item | {"content": ""})
    size = _json_size(item["content"])
    if most_bytes - fixed < min(size, _LEAST_BYTES):
        return 0
    item["content"] = _cut(item["content"], most_bytes - fixed)
    return fixed + _json_size(item["content"])


def _size(item: dict[str, Any]) -> int:
    """Returns the bytes of a description in an indented return."""
    text = indented_json(item)
    return len(text.encode()) + _INDENT * (text.count("\n") + 1) + _AROUND_LIST


def _json_size(text: str) -> int:
    return len(quoted(text).encode()) - len('""')


def _cut(text: str, most_bytes: int) -> str:
    """Cuts a text to a size as JSON, in which line breaks and quotes take two bytes."""
    if len(text) <= most_bytes and _json_size(text) <= most_bytes:
        return text
    most = max(most_bytes - len(_CUT), 0)
    start = text[:most]
    while (size := _json_size(start)) > most:
        start = start[: min(len(start) - 1, len(start) * most // size)]
    return start.rstrip() + _CUT
