"""Taint: tracks untrusted content in the model's context (decision 0080).

Labels of web pages and MCP servers are untrusted. The taint of a model call is the set of untrusted
labels of everything in its context window. Replies, summaries and memories that are written under
taint get its labels too, so that repeating untrusted content does not make it trusted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from strata.agent_loop.domain.conversation.messages import Message
from strata.agent_loop.domain.conversation.taint_sources import TaintSource
from strata.shared.messages import MessageRole
from strata.shared.provenance import Taint, taint_of

MAX_SOURCES = 20


def taint_of_messages(messages: Iterable[Message]) -> Taint:
    """Returns the taint of messages."""
    # Most messages of a window have the same labels as another one.
    return taint_of(*{message.labels for message in messages})


def sources_of(
    messages: Sequence[Message],
    blocks: Mapping[str, Taint],
    tags: Mapping[str, Taint],
    most: int = MAX_SOURCES,
) -> tuple[TaintSource, ...]:
    """Returns the sources of the taint of a context: messages, newest first, then blocks and tags.

    Replies written under taint are listed only if no other source of their label is left, for
    example after a message was deleted. Each label has a source, even beyond `most`.

    Args:
        messages: The window.
        blocks: Taint of the blocks that are shown, by block label.
        tags: Taint of the tags of archival memory that are shown, by tag.
        most: How many sources to return.
    """
    sources = [source for message in reversed(messages) for source in _of_message(message)]
    sources += [
        TaintSource(label, block_label=name)
        for name, labels in blocks.items()
        for label in taint_of(labels)
    ]
    sources += [
        TaintSource(label, archival_tag=tag)
        for tag, labels in tags.items()
        for label in taint_of(labels)
    ]
    labels_with_source = {source.label for source in sources}
    derived = (
        TaintSource(label, message_id=message.id)
        for message in reversed(messages)
        for label in taint_of(message.labels)
        if label not in labels_with_source
    )
    return _cut([*sources, *derived], most)


# Roles of messages that are sent to the model; replies and tool returns are handled apart.
_INPUT_ROLES = frozenset({MessageRole.SUMMARY, MessageRole.USER, MessageRole.SYSTEM})


def _of_message(message: Message) -> Iterator[TaintSource]:
    if message.role in _INPUT_ROLES:
        yield from (TaintSource(label, message.id) for label in taint_of(message.provenance))
    for tool_return in message.tool_returns:
        own = () if tool_return.provenance is None else (tool_return.provenance,)
        for label in taint_of(own, tool_return.taint):
            yield TaintSource(label, message.id, tool_return.name, tool_return.tool_call_id)


def _cut(sources: Sequence[TaintSource], max_sources: int) -> tuple[TaintSource, ...]:
    """Returns the first `max_sources` sources, and at least the first source of each label."""
    first = {source.label: index for index, source in reversed(list(enumerate(sources)))}
    kept_indices = {*first.values()}
    kept_indices.update(
        [index for index in range(len(sources)) if index not in kept_indices][
            : max_sources - len(kept_indices)
        ]
    )
    return tuple(sources[index] for index in sorted(kept_indices))
