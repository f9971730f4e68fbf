"""Reads the text of agents' files from PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strata.core_memory.files.domain.grep import GrepFile, LineRange, SearchedPage
from strata.core_memory.files.domain.lines import ReadableFile
from strata.shared.db import Database, sql

# First selects the next files with the index, then looks up the rest for those only.
_FILES = sql(
    """
    WITH next_files AS (
        SELECT d.name AS folder, f.id, f.name, f.content_hash
        FROM core_memory.folder_attachments a
        JOIN core_memory.folders d ON d.project_id = a.project_id AND d.id = a.folder_id
        CROSS JOIN LATERAL (
            SELECT id, name, content_hash FROM core_memory.files
            WHERE project_id = d.project_id AND folder_id = d.id
              AND (d.name > CAST(:after_folder AS text) OR name > CAST(:after_file AS text))
            ORDER BY name LIMIT :count) f
        WHERE a.project_id = :project AND a.agent_id = :agent
          AND d.name >= CAST(:after_folder AS text)
        ORDER BY d.name, f.name LIMIT :count
    )
    SELECT n.id, n.folder || '/' || n.name AS name, n.content_hash,
           c.state = 'text' AS readable, c.char_count, o.file_id IS NOT NULL AS is_open
    FROM next_files n
    JOIN core_memory.contents c ON c.project_id = :project AND c.content_hash = n.content_hash
    LEFT JOIN core_memory.open_files o
      ON o.project_id = :project AND o.agent_id = :agent AND o.file_id = n.id
    ORDER BY n.folder, n.name
    """
)
_PAGES = sql(
    """
    SELECT w.ordinal, p.page, p.first_line, p.text
    FROM unnest(CAST(:contents AS text[])) WITH ORDINALITY AS w(content, ordinal)
    CROSS JOIN LATERAL (
        SELECT page, first_line, text FROM core_memory.content_pages
        WHERE project_id = :project AND content_hash = w.content
          AND (w.ordinal > CAST(:after AS int) OR page > CAST(:after_page AS int))
        ORDER BY page LIMIT :count) p
    WHERE w.ordinal >= CAST(:after AS int)
    ORDER BY w.ordinal, p.page LIMIT :count
    """
)
# Selects only the lines of the range from the pages that overlap it.
_LINES = sql(
    """
    SELECT r.content, greatest(r.first, p.first_line) AS first_line,
           array_to_string(
               (string_to_array(p.text, chr(10)))[
                   greatest(r.first - p.first_line, 0) + 1 : r.last - p.first_line + 1],
               chr(10)) AS text
    FROM unnest(CAST(:contents AS text[]), CAST(:firsts AS int[]), CAST(:lasts AS int[]))
         AS r(content, first, last)
    JOIN core_memory.content_pages p
      ON p.project_id = :project AND p.content_hash = r.content
     AND p.first_line <= r.last AND p.first_line + p.line_count > r.first
    """
)


_FILE = sql(
    """
    SELECT d.name || '/' || f.name AS name, f.content_hash, c.line_count
    FROM core_memory.files f
    JOIN core_memory.folders d ON d.project_id = f.project_id AND d.id = f.folder_id
    JOIN core_memory.folder_attachments a
      ON a.project_id = f.project_id AND a.folder_id = f.folder_id AND a.agent_id = :agent
    JOIN core_memory.contents c
      ON c.project_id = f.project_id AND c.content_hash = f.content_hash AND c.state = 'text'
    WHERE f.project_id = :project AND f.id = :file
    """
)
_PAGE_FROM = sql(
    """
    SELECT first_line, text FROM core_memory.content_pages
    WHERE project_id = :project AND content_hash = :content
      AND first_line + line_count > CAST(:first AS int)
    ORDER BY page LIMIT 1
    """
)


class PostgresTextStore:
    """Texts of files; see `domain.grep.TextStore` and `domain.lines.LineStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def grep_files(self, agent_id: str, after: str, count: int) -> list[GrepFile]:
        """Returns files of an agent's folders by folder and name, after ``FOLDER/FILE``."""
        folder, _, file = after.partition("/")
        rows = await self._database.query(
            _FILES, agent=agent_id, after_folder=folder, after_file=file, count=count
        )
        return [
            GrepFile(
                id=row.id,
                name=row.name,
                content_key=row.content_hash,
                readable=row.readable,
                char_count=row.char_count,
                is_open=row.is_open,
            )
            for row in rows
        ]

    async def grep_pages(
        self, content_keys: Sequence[str], after: tuple[int, int], count: int
    ) -> list[SearchedPage]:
        """Returns pages of contents in order."""
        index, page = after
        rows = await self._database.query(
            _PAGES, contents=list(content_keys), after=index + 1, after_page=page, count=count
        )
        return [SearchedPage(row.ordinal - 1, row.page, row.first_line, row.text) for row in rows]

    async def lines(self, ranges: Sequence[LineRange]) -> Mapping[tuple[str, int], str]:
        """Returns lines by content and number."""
        rows = await self._database.query(
            _LINES,
            contents=[range_.content_key for range_ in ranges],
            firsts=[range_.first for range_ in ranges],
            lasts=[range_.last for range_ in ranges],
        )
        return {
            (row.content, number): line
            for row in rows
            for number, line in enumerate(row.text.split("\n"), start=row.first_line)
        }

    async def readable_file(self, agent_id: str, file_id: str) -> ReadableFile | None:
        """Returns a file in a folder of an agent; None if it does not exist or has no text."""
        rows = await self._database.query(_FILE, agent=agent_id, file=file_id)
        return (
            ReadableFile(rows[0].name, rows[0].content_hash, rows[0].line_count) if rows else None
        )

    async def page_from(self, content_key: str, first_line: int) -> list[str]:
        """Returns lines of a content from `first_line` (from 1) on; none after the end."""
        rows = await self._database.query(_PAGE_FROM, content=content_key, first=first_line)
        if not rows:
            return []
        lines: list[str] = rows[0].text.split("\n")
        return lines[max(first_line - rows[0].first_line, 0) :]
