"""Taint: text of strangers in what the model sees (decision 0080).

A label is untrusted if strangers write what it stands for: web pages and MCP servers. The taint of
a model call is the set of untrusted labels of all that is in its context window. What is written
under taint, a reply, a summary, a memory, has its labels too, so that text does not come clean by
being said again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from strata.agent_loop.domain.messages import Message, MessageRole, Provenance

UNTRUSTED = (Provenance.WEB, Provenance.MCP)
"""Labels that taint, in the order in which they are told.

TOOL is none of them: what a project's own program returns is as trusted as the program, and a rule
that any tool's return sets off would ask always. A tool whose returns strangers write is labelled
WEB or MCP by the executor.
"""

MAX_SOURCES = 20

Taint: TypeAlias = tuple[Provenance, ...]


@dataclass(frozen=True, slots=True)
class TaintSource:
    """A place in the context with text of strangers.

    Attributes:
        label: What text.
        message_id: The message that it stands in; empty for a block or a call to be run.
        tool_name: The tool that returned it.
        tool_call_id: The call that returned it, or is about to.
        block_label: The memory block that was written under it.
    """

    label: Provenance
    message_id: str = ""
    tool_name: str = ""
    tool_call_id: str = ""
    block_label: str = ""


def taint_of(*labels: Iterable[Provenance]) -> Taint:
    """Returns the untrusted ones among labels, each once, in a fixed order."""
    distinct = {label for some in labels for label in some}
    return tuple(label for label in UNTRUSTED if label in distinct)


def taint_of_messages(messages: Iterable[Message]) -> Taint:
    """Returns the taint of messages."""
    return taint_of(*(labels_of(message) for message in messages))


def labels_of(message: Message) -> Iterator[Provenance]:
    """Yields the labels of a message, those of the returns in it included."""
    yield from message.provenance
    for tool_return in message.tool_returns:
        if tool_return.provenance is not None:
            yield tool_return.provenance
        yield from tool_return.taint


def sources_of(
    messages: Sequence[Message], blocks: Mapping[str, Taint], most: int = MAX_SOURCES
) -> tuple[TaintSource, ...]:
    """Returns where the taint of a context stands, newest first, then the blocks.

    Replies that were written under it are named only where nothing else of their label is left,
    as after a summary's message was deleted. Every label of the taint has a source, also if
    there are more than `most`.

    Args:
        messages: The window.
        blocks: Taint of the blocks that are shown, by label.
        most: How many to return.
    """
    sources = [source for message in reversed(messages) for source in _of_message(message)]
    sources += [
        TaintSource(label, block_label=name)
        for name, labels in blocks.items()
        for label in taint_of(labels)
    ]
    named = {source.label for source in sources}
    derived = (
        TaintSource(label, message_id=message.id)
        for message in reversed(messages)
        for label in taint_of(labels_of(message))
        if label not in named
    )
    return _cut([*sources, *derived], most)


# What is told to the model, and not said or read by it.
_TOLD = frozenset({MessageRole.SUMMARY, MessageRole.USER, MessageRole.SYSTEM})


def _of_message(message: Message) -> Iterator[TaintSource]:
    if message.role in _TOLD:
        yield from (TaintSource(label, message.id) for label in taint_of(message.provenance))
    for tool_return in message.tool_returns:
        own = () if tool_return.provenance is None else (tool_return.provenance,)
        for label in taint_of(own, tool_return.taint):
            yield TaintSource(label, message.id, tool_return.name, tool_return.tool_call_id)


def _cut(sources: Sequence[TaintSource], most: int) -> tuple[TaintSource, ...]:
    """Returns the first sources, and of a label that none of them has its first one."""
    first = {source.label: place for place, source in reversed(list(enumerate(sources)))}
    kept = {*first.values()}
    kept.update([place for place in range(len(sources)) if place not in kept][: most - len(kept)])
    return tuple(sources[place] for place in sorted(kept))
