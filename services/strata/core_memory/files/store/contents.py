"""Stores the bytes of files and their converted text, by content.

All transactions that change files take locks in one order, to exclude deadlocks: folders (by
id), files, contents (by key).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from strata.shared.db import Database, DatabaseConnection, sql

_PART = sql(
    "SELECT data FROM core_memory.content_parts"
    " WHERE project_id = :project AND content_hash = :content AND part = :part"
)
_PAGE = sql(
    """
    SELECT page, first_line, line_count, text FROM core_memory.content_pages
    WHERE project_id = :project AND content_hash = :content AND page > :after
    ORDER BY page LIMIT 1
    """
)
_PUT_PAGES = sql(
    """
    INSERT INTO core_memory.content_pages
        (project_id, content_hash, page, first_line, line_count, text)
    SELECT :project, :content, p.page, p.first_line, p.line_count, p.text
    FROM unnest(CAST(:pages AS int[]), CAST(:first_lines AS int[]), CAST(:line_counts AS int[]),
                CAST(:texts AS text[])) AS p(page, first_line, line_count, text)
    """
)
_DROP_PAGES = sql(
    "DELETE FROM core_memory.content_pages WHERE project_id = :project AND content_hash = :content"
)
_LOCK_FOLDERS = sql(
    """
    SELECT d.id FROM core_memory.folders d
    WHERE d.project_id = :project AND d.id IN (
        SELECT f.folder_id FROM core_memory.files f
        WHERE f.project_id = :project AND f.content_hash = :content)
    ORDER BY d.id FOR NO KEY UPDATE
    """
)
# A later claim has increased `attempts`, so that writes of an earlier one match no row.
_LOCK_CLAIMED = sql(
    """
    SELECT true FROM core_memory.contents
    WHERE project_id = :project AND content_hash = :content
      AND state = 'stored' AND attempts = :attempt
    FOR NO KEY UPDATE
    """
)
_READ = sql(
    """
    UPDATE core_memory.contents
    SET state = 'text', error = '', line_count = :lines, char_count = :chars, lease_until = NULL
    WHERE project_id = :project AND content_hash = :content
    """
)
_UNREADABLE = sql(
    """
    UPDATE core_memory.contents SET state = 'failed', error = :error, lease_until = NULL
    WHERE project_id = :project AND content_hash = :content
    """
)
# Executed after the update of the content, so that it sees files that were added meanwhile.
_UPDATE_FILES = sql(
    """
    WITH changed_files AS (
        UPDATE core_memory.files
        SET state = :state, error = :error, attempts = 0,
            chunk_count = 0, indexed_count = 0, update_time = clock_timestamp()
        WHERE project_id = :project AND content_hash = :content AND state IN ('parsing', 'failed')
        RETURNING folder_id
    )
    UPDATE core_memory.folders SET revision = revision + 1
    WHERE project_id = :project AND id IN (SELECT folder_id FROM changed_files)
    """
)
# The index may have chunks of an earlier content of a file that was replaced by this one. Searches
# leave them out, but they would take the place of chunks of other files. Executed before
# _UPDATE_FILES: a row that a worker is sending is kept until its lease ends, as for deleted files.
_DROP_FROM_INDEX = sql(
    """
    INSERT INTO core_memory.dropped_files AS d (project_id, id, due_time, keep_until)
    SELECT project_id, id, clock_timestamp(), greatest(clock_timestamp(), lease_until)
    FROM core_memory.files
    WHERE project_id = :project AND content_hash = :content AND state = 'parsing'
    ORDER BY id
    ON CONFLICT (project_id, id) DO UPDATE SET
        due_time = excluded.due_time, keep_until = greatest(d.keep_until, excluded.keep_until)
    """
)
_LOCK_CONTENTS = sql(
    """
    SELECT content_hash, size_bytes + char_count AS size FROM core_memory.contents
    WHERE project_id = :project AND content_hash = ANY(CAST(:contents AS text[]))
    ORDER BY content_hash FOR UPDATE
    """
)
# Contents that are deleted in the transaction of the request; the worker deletes further ones.
_MOST_DELETED = 1_000
_MOST_DELETED_SIZE = 50_000_000
_QUEUE_ORPHANS = sql(
    """
    INSERT INTO core_memory.dropped_contents (project_id, content_hash, due_time)
    SELECT c.project_id, c.content_hash, clock_timestamp() FROM core_memory.contents c
    WHERE c.project_id = :project AND c.content_hash = ANY(CAST(:contents AS text[]))
      AND NOT EXISTS (SELECT 1 FROM core_memory.files f
                      WHERE f.project_id = c.project_id AND f.content_hash = c.content_hash)
    ORDER BY c.content_hash
    ON CONFLICT DO NOTHING
    """
)
_DELETE_ORPHANS = sql(
    """
    WITH deleted AS (
        DELETE FROM core_memory.contents c
        WHERE c.project_id = :project AND c.content_hash = ANY(CAST(:contents AS text[]))
          AND NOT EXISTS (SELECT 1 FROM core_memory.files f
                          WHERE f.project_id = c.project_id AND f.content_hash = c.content_hash)
        RETURNING c.content_hash
    )
    DELETE FROM core_memory.content_parts p USING deleted
    WHERE p.project_id = :project AND p.content_hash = deleted.content_hash
    """
)


@dataclass(frozen=True, slots=True)
class TextPage:
    """Consecutive whole lines of a content.

    Attributes:
        page: Position in the content, from 0.
        first_line: Number of its first line, from 1.
        line_count: Number of its lines.
        text: The lines, joined by line feeds, without one at the end.
    """

    page: int
    first_line: int
    line_count: int
    text: str


class ContentStore:
    """Reads and writes contents of any project, for the worker.

    Args:
        database: Connects with the database role of the service.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def parts(self, project_id: str, content: str) -> AsyncIterator[bytes]:
        """Yields the bytes part by part, each from a separate transaction."""
        part = 0
        while True:
            bound = {"project": project_id, "content": content, "part": part}
            async with self._database.transaction(
                project_id=project_id, read_only=True
            ) as connection:
                data = (await connection.execute(_PART, bound)).scalar()
            if data is None:
                return
            yield data
            part += 1

    async def pages(self, project_id: str, content: str) -> AsyncIterator[TextPage]:
        """Yields the text of a content page by page."""
        bound: dict[str, Any] = {"project": project_id, "content": content}
        page = -1
        while True:
            async with self._database.transaction(
                project_id=project_id, read_only=True
            ) as connection:
                row = (await connection.execute(_PAGE, {**bound, "after": page})).one_or_none()
            if row is None:
                return
            page = row.page
            yield TextPage(page, row.first_line, row.line_count, row.text)

    async def put_pages(
        self, project_id: str, content: str, pages: Sequence[TextPage], *, attempt: int
    ) -> bool:
        """Stores some pages; they are invisible until `readable` is called.

        Page 0 removes the pages of earlier attempts.

        Args:
            project_id: The project.
            content: The content.
            pages: The pages, in order.
            attempt: The number of the attempt, from the claim.

        Returns:
            False if the content was deleted, or claimed by another worker.
        """
        bound = {"project": project_id, "content": content}
        async with self._database.transaction(project_id=project_id) as connection:
            if not await _is_claimed(connection, bound, attempt):
                return False
            if pages[0].page == 0:
                await connection.execute(_DROP_PAGES, bound)
            await connection.execute(
                _PUT_PAGES,
                {
                    **bound,
                    "pages": [page.page for page in pages],
                    "first_lines": [page.first_line for page in pages],
                    "line_counts": [page.line_count for page in pages],
                    "texts": [page.text for page in pages],
                },
            )
        return True

    async def readable(
        self, project_id: str, content: str, *, attempt: int, line_count: int, char_count: int
    ) -> bool:
        """Marks a content as read after its last page, which makes its files readable.

        Returns:
            False if the content was deleted, or claimed by another worker.
        """
        return await self._end(
            project_id,
            content,
            attempt,
            (_READ, {"lines": line_count, "chars": char_count}),
            {"state": "indexing", "error": ""},
        )

    async def unreadable(self, project_id: str, content: str, error: str, *, attempt: int) -> bool:
        """Marks a content as unreadable, with the reason; see `readable`."""
        return await self._end(
            project_id,
            content,
            attempt,
            (_UNREADABLE, {"error": error}),
            {"state": "failed", "error": error},
        )

    async def _end(
        self,
        project_id: str,
        content: str,
        attempt: int,
        change: tuple[Any, dict[str, Any]],
        files: dict[str, str],
    ) -> bool:
        bound = {"project": project_id, "content": content}
        async with self._database.transaction(project_id=project_id) as connection:
            await connection.execute(_LOCK_FOLDERS, bound)
            if not await _is_claimed(connection, bound, attempt):
                return False
            # Remove pages of earlier attempts, if this one has written no page 0.
            if files["state"] == "failed" or not change[1].get("lines"):
                await connection.execute(_DROP_PAGES, bound)
            await connection.execute(change[0], {**bound, **change[1]})
            if files["state"] == "failed":
                await connection.execute(_DROP_FROM_INDEX, bound)
            await connection.execute(_UPDATE_FILES, {**bound, **files})
        return True


async def _is_claimed(
    connection: DatabaseConnection, content: dict[str, str], attempt: int
) -> bool:
    result = await connection.execute(_LOCK_CLAIMED, {**content, "attempt": attempt})
    return result.scalar() is not None


async def drop_orphans(
    connection: DatabaseConnection, project_id: str, contents: Sequence[str]
) -> None:
    """Deletes the contents that no file uses, with their parts and pages.

    Large contents, and many, are queued instead, since a statement would not delete them in its
    time; see `delete_orphan`.
    """
    bound = {"project": project_id, "contents": list(contents)}
    # A transaction that adds a file of such a content holds its lock until it commits.
    rows = (await connection.execute(_LOCK_CONTENTS, bound)).all()
    smallest_first = sorted(rows, key=lambda row: int(row.size))
    sizes = accumulate(int(row.size) for row in smallest_first)
    count = min(sum(size <= _MOST_DELETED_SIZE for size in sizes), _MOST_DELETED)
    keys = [str(row.content_hash) for row in smallest_first]
    for statement, chosen in ((_DELETE_ORPHANS, keys[:count]), (_QUEUE_ORPHANS, keys[count:])):
        if chosen:
            await connection.execute(statement, {**bound, "contents": chosen})


async def delete_orphan(connection: DatabaseConnection, project_id: str, content: str) -> None:
    """Deletes a content if no file uses it, whatever its size."""
    bound = {"project": project_id, "contents": [content]}
    await connection.execute(_LOCK_CONTENTS, bound)
    await connection.execute(_DELETE_ORPHANS, bound)
