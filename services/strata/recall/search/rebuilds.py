"""Reads the messages for rebuilds of the index."""

from __future__ import annotations

from collections.abc import Sequence

from strata.recall.search.index import entries_of
from strata.recall.store import PendingMessages
from strata.recall.store.contents import MessageContents
from strata.shared.search.reindexing.check import StoredText
from strata.shared.search.reindexing.reindexer import Batch

_NONE_YET = ("", "")
# Factor for the number of rows to read: few messages of agents with many tools are indexed.
_READ_FACTOR = 8


class MessageTexts:
    """The indexed messages, as `Contents`.

    Args:
        contents: Reads their keys.
        pending: Reads messages by id.
    """

    def __init__(self, contents: MessageContents, pending: PendingMessages) -> None:
        self._contents = contents
        self._pending = pending

    async def count(self) -> int:
        """Returns the number of indexed messages."""
        return await self._contents.count()

    async def batch(self, cursor: tuple[str, ...], limit: int) -> Batch | None:
        """See `Rebuildable.batch`."""
        project, message_id = cursor or _NONE_YET
        keys_and_last = await self._contents.after((project, message_id), limit * _READ_FACTOR)
        if keys_and_last is None:
            return None
        keys, last = keys_and_last
        if len(keys) > limit:
            keys, last = keys[:limit], keys[limit - 1]
        messages = await self._pending.load(last[0], [key[1] for key in keys]) if keys else []
        return Batch(last[0], entries_of(messages), {}, last, len(keys))

    async def changed(self, batch: Batch) -> list[str]:
        """See `Contents.changed`; messages never change, but they can be deleted."""
        return await self._contents.deleted(batch.project_id, [entry.id for entry in batch.entries])

    async def texts(self, keys: Sequence[tuple[str, str]]) -> list[StoredText]:
        """See `Rebuildable.texts`."""
        texts = []
        for project, message_id in keys:
            alive = await self._pending.load(project, [message_id])
            texts += [StoredText(project, entry.id, entry.text) for entry in entries_of(alive)]
        return texts
