"""Searches an agent's files by meaning, with the archival service's index."""

from __future__ import annotations

from collections.abc import Sequence

from strata.core_memory.files.domain.ports import ChunkHit, FileIndex
from strata.core_memory.files.domain.search import (
    MAX_FOLDERS,
    MAX_LIMIT,
    FileFindings,
    FileHit,
    FileQuery,
    ScopeStore,
    checked_limit,
    message_of,
)
from strata.shared.clock import Clock

# Requested in addition, since some of the found files may be deleted already.
_SPARE = 5


class FileSearch:
    """Searches files by meaning."""

    def __init__(self, store: ScopeStore, index: FileIndex, clock: Clock) -> None:
        self._store = store
        self._index = index
        self._clock = clock

    async def search(self, query: FileQuery) -> FileFindings:
        """Returns the best passages of the agent's files.

        Open files with hits count as used, so that others are closed before them.

        Raises:
            InvalidArgumentError: The query is invalid; the message is written for the model.
            UnavailableError: The archival service cannot be reached.
        """
        limit = checked_limit(query)
        scope = await self._store.scope(query.agent_id, MAX_FOLDERS)
        if not scope.folder_ids:
            return FileFindings((), "No files are currently attached to search", 0)
        requested = min(limit + _SPARE, MAX_LIMIT)
        result = await self._index.search(
            scope.folder_ids, query.query, requested, explain=query.explain
        )
        hits = await self._named(query.agent_id, result.hits, limit)
        message = message_of(query, hits, scope.unindexed_files)
        below_floor = min(result.below_floor, limit)
        return FileFindings(hits, message, scope.unindexed_files, below_floor)

    async def _named(
        self, agent_id: str, hits: Sequence[ChunkHit], limit: int
    ) -> tuple[FileHit, ...]:
        if not hits:
            return ()
        names = await self._store.names_of(agent_id, sorted({hit.file_id for hit in hits}))
        attached_hits = [hit for hit in hits if hit.file_id in names][:limit]
        if attached_hits:
            file_ids = sorted({hit.file_id for hit in attached_hits})
            await self._store.touch(agent_id, file_ids, self._clock.now())
        return tuple(
            FileHit(
                file_name=names[hit.file_id],
                start_line=hit.chunk.start_line,
                end_line=hit.chunk.end_line,
                text=hit.chunk.text,
                score=hit.score,
            )
            for hit in attached_hits
        )
