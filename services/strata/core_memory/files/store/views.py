"""Reads the rendered parts of agents' folders from PostgreSQL."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

from strata.core_memory.files.domain.directories import (
    CLOSED_SHOWN,
    MOST_LISTED,
    AgentFolders,
    FolderView,
    WindowTexts,
)
from strata.core_memory.files.domain.file_windows import AttachedFile, FileWindow
from strata.core_memory.files.domain.files import ContentState
from strata.core_memory.files.text_extraction.pages import PAGE_CHARS
from strata.shared.context import current_project
from strata.shared.db import DatabaseConnection, Row, SqlStatement, sql

DIRECTORIES_FINGERPRINT = """
    coalesce((
        SELECT md5(string_agg(d.id || '@' || d.revision, ',' ORDER BY a.position) || '|'
            || coalesce((
                SELECT string_agg(
                    o.file_id || ':' || o.start_line || '-' || o.end_line || '@' || f.content_hash,
                    ',' ORDER BY o.file_id)
                FROM core_memory.open_files o
                JOIN core_memory.files f ON f.project_id = o.project_id AND f.id = o.file_id
                WHERE o.project_id = :project AND o.agent_id = :agent), '')
            || coalesce((
                SELECT '|' || array_to_string(n.closed_files, '/')
                FROM core_memory.prepared_agents n
                WHERE n.project_id = :project AND n.agent_id = :agent), ''))
        FROM core_memory.folder_attachments a
        JOIN core_memory.folders d ON d.project_id = a.project_id AND d.id = a.folder_id
        WHERE a.project_id = :project AND a.agent_id = :agent), '')
"""
"""A scalar of the parameters ``project`` and ``agent``; '' if no folder is attached.

Equal fingerprints mean equal directories. It depends on the folders, the open windows and the
files that were closed to fit. It does not read the other files: a folder's revision increases with
every change of its files that is visible in a prompt.
"""

# The open files of each folder and some closed ones, in one statement. Closed files are chosen in
# rounds, up to a number: the first of each folder, then the second of each.
_FOLDERS = """
    WITH attached AS (
        SELECT a.position, d.id, d.name, d.description, d.instructions, d.file_count
        FROM core_memory.folder_attachments a
        JOIN core_memory.folders d ON d.project_id = a.project_id AND d.id = a.folder_id
        WHERE a.project_id = :project AND a.agent_id = :agent
    ), shown AS (
        SELECT f.folder_id, f.id, f.name, o.start_line, o.end_line, o.last_access_time,
               c.state, c.error, c.line_count
        FROM core_memory.open_files o
        JOIN core_memory.files f ON f.project_id = o.project_id AND f.id = o.file_id
        JOIN core_memory.contents c
          ON c.project_id = f.project_id AND c.content_hash = f.content_hash
        WHERE o.project_id = :project AND o.agent_id = :agent
        UNION ALL
        (SELECT attached.id, f.id, f.name, NULL, NULL, NULL, NULL, NULL, NULL
         FROM attached CROSS JOIN LATERAL (
             SELECT f.id, f.name, row_number() OVER (ORDER BY f.name) AS place
             FROM core_memory.files f
             WHERE f.project_id = :project AND f.folder_id = attached.id AND NOT EXISTS (
                 SELECT 1 FROM core_memory.open_files o
                 WHERE o.project_id = f.project_id AND o.agent_id = :agent AND o.file_id = f.id)
             ORDER BY f.name LIMIT :shown) f
         ORDER BY f.place, attached.position LIMIT :listed)
    )
    SELECT attached.id AS folder_id, attached.name AS folder_name, attached.description,
           attached.instructions, attached.file_count,
           f.id, f.name, f.start_line, f.end_line, f.last_access_time, f.state, f.error,
           f.line_count,
           (SELECT closed_files FROM core_memory.prepared_agents
             WHERE project_id = :project AND agent_id = :agent) AS closed_files,
           {fingerprint} AS fingerprint
    FROM attached LEFT JOIN shown f ON f.folder_id = attached.id
    ORDER BY attached.position, f.name
    """
# From the first line of the window. The last page is returned whole: cutting it by characters
# takes PostgreSQL many times as long as sending it.
_TEXTS = """
    SELECT f.id, p.page,
           CASE WHEN p.first_line >= w.start THEN p.text
                ELSE array_to_string(
                    (string_to_array(p.text, chr(10)))[w.start - p.first_line + 1 : ], chr(10))
           END AS text,
           {fingerprint} AS fingerprint
    FROM unnest(CAST(:files AS text[]), CAST(:starts AS int[]), CAST(:ends AS int[]),
                CAST(:pages AS int[])) AS w(file, start, stop, pages)
    JOIN core_memory.files f ON f.project_id = :project AND f.id = w.file
    CROSS JOIN LATERAL (
        SELECT page FROM core_memory.content_pages
        WHERE project_id = f.project_id AND content_hash = f.content_hash
          AND first_line <= w.start
        ORDER BY first_line DESC LIMIT 1) first
    JOIN core_memory.content_pages p
      ON p.project_id = f.project_id AND p.content_hash = f.content_hash
     AND p.page >= first.page AND p.page < first.page + w.pages AND p.first_line <= w.stop
    ORDER BY f.id, p.page
    """


@dataclass(frozen=True, slots=True)
class ViewStatements:
    """The statements that read what is rendered of an agent's folders.

    Attributes:
        folders: Reads the folders with the windows of open files.
        texts: Reads the texts of windows.
    """

    folders: SqlStatement
    texts: SqlStatement

    @classmethod
    def with_fingerprint(cls, fingerprint: str) -> ViewStatements:
        """Returns statements that also read a scalar.

        Args:
            fingerprint: SQL with the parameters ``project`` and ``agent``.
        """
        return cls(
            sql(_FOLDERS.format(fingerprint=fingerprint)),
            sql(_TEXTS.format(fingerprint=fingerprint)),
        )


_WITHOUT_FINGERPRINT = ViewStatements.with_fingerprint("''")


class PostgresViews:
    """Reads folders and texts; see `directories.Views`.

    Args:
        query: Returns the rows of a statement, given its parameters without ``project``.
        statements: The statements.
    """

    def __init__(
        self,
        query: Callable[..., Awaitable[Sequence[Row]]],
        statements: ViewStatements = _WITHOUT_FINGERPRINT,
    ) -> None:
        self._query = query
        self._statements = statements

    @classmethod
    def of_transaction(cls, connection: DatabaseConnection) -> PostgresViews:
        """Returns views that read in a transaction."""

        async def query(statement: SqlStatement, **parameters: Any) -> Sequence[Row]:
            bound = {"project": current_project(), **parameters}
            return (await connection.execute(statement, bound)).all()

        return cls(query)

    async def folders(self, agent_id: str) -> AgentFolders:
        """Returns the agent's folders."""
        rows = await self._query(
            self._statements.folders, agent=agent_id, shown=CLOSED_SHOWN, listed=MOST_LISTED
        )
        if not rows:
            return AgentFolders(())
        groups = groupby(rows, attrgetter("folder_id"))
        return AgentFolders(
            [_to_folder(list(group)) for _, group in groups],
            list(rows[0].closed_files or ()),
            rows[0].fingerprint,
        )

    async def texts(self, agent_id: str, windows: Sequence[FileWindow], chars: int) -> WindowTexts:
        """Returns the texts from the windows' first lines on."""
        rows = await self._query(
            self._statements.texts,
            agent=agent_id,
            files=[window.file.id for window in windows],
            starts=[window.start for window in windows],
            ends=[window.last_line for window in windows],
            pages=[chars // PAGE_CHARS + _first_pages(window) for window in windows],
        )
        pieces = defaultdict(list)
        for row in rows:
            pieces[row.id].append(row.text)
        return WindowTexts(
            {file_id: "\n".join(texts) for file_id, texts in pieces.items()},
            rows[0].fingerprint if rows else "",
        )


def _first_pages(window: FileWindow) -> int:
    # A window that starts within a page shows only a part of it.
    return 1 if window.start == 1 else 2


def _to_folder(rows: Sequence[Row]) -> FolderView:
    first = rows[0]
    files = [row for row in rows if row.id is not None]
    closed = [f"{first.folder_name}/{row.name}" for row in files if row.start_line is None]
    return FolderView(
        name=first.folder_name,
        description=first.description,
        instructions=first.instructions,
        windows=[_to_window(row) for row in files if row.start_line is not None],
        closed=closed,
        more=max(0, first.file_count - len(files)),
    )


def _to_window(row: Row) -> FileWindow:
    name = f"{row.folder_name}/{row.name}"
    file = AttachedFile(row.id, name, ContentState(row.state), row.error, row.line_count)
    return FileWindow(file, row.start_line, row.end_line, row.last_access_time)
