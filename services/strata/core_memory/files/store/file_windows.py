"""Stores windows of agents in PostgreSQL, and measures the prompt that they give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from strata.core_memory.domain.blocks import agent_not_found
from strata.core_memory.domain.core_memory import Receipt
from strata.core_memory.domain.prompt.compilation import FileLimits
from strata.core_memory.domain.prompt.limits import NO_LIMIT, PromptLimit
from strata.core_memory.files.domain.directories import read_directories
from strata.core_memory.files.domain.file_windows import (
    AttachedFile,
    CheckUse,
    ChooseWindows,
    FileWindow,
    OpenFilesResult,
    PlanWindows,
    PromptUse,
    WindowPlan,
)
from strata.core_memory.files.domain.files import ContentState
from strata.core_memory.files.domain.search import SearchScope
from strata.core_memory.files.store.rows import PROMPT_LIMIT, to_prompt_limit
from strata.core_memory.files.store.transactions import once
from strata.core_memory.files.store.views import PostgresViews
from strata.shared.context import current_project
from strata.shared.db import Database, DatabaseConnection, Row, sql

# The files of an agent, through its attached folders.
ATTACHED = """
    core_memory.folder_attachments a
    JOIN core_memory.folders d ON d.project_id = a.project_id AND d.id = a.folder_id
    JOIN core_memory.files f ON f.project_id = d.project_id AND f.folder_id = d.id
    JOIN core_memory.contents c ON c.project_id = f.project_id AND c.content_hash = f.content_hash
"""
OF_AGENT = "a.project_id = :project AND a.agent_id = :agent"
_FILE = "f.id, d.name || '/' || f.name AS name, c.state, c.error, c.line_count"

_LOCK_AGENT = sql(
    "SELECT 1 FROM core_memory.prepared_agents"
    " WHERE project_id = :project AND agent_id = :agent FOR NO KEY UPDATE"
)
# Locked in order and before any window, so that files and attachments are not deleted.
_NAMED = sql(
    f"""
    SELECT {_FILE}
    FROM {ATTACHED}
    JOIN unnest(CAST(:folders AS text[]), CAST(:files AS text[])) AS r(folder, file)
      ON d.name = r.folder AND f.name = r.file
    WHERE {OF_AGENT}
    ORDER BY f.id FOR KEY SHARE OF f, a
    """
)
_WINDOWS = sql(
    f"""
    SELECT {_FILE}, o.start_line, o.end_line, o.last_access_time
    FROM {ATTACHED}
    JOIN core_memory.open_files o ON o.project_id = f.project_id AND o.file_id = f.id
    WHERE {OF_AGENT} AND o.agent_id = :agent
    """
)
_CHANGE = sql(
    """
    WITH closed_windows AS (
        DELETE FROM core_memory.open_files
        WHERE project_id = :project AND agent_id = :agent
          AND file_id = ANY(CAST(:closed AS text[]))
    ), noted_agent AS (
        UPDATE core_memory.prepared_agents
        SET closed_files = CASE WHEN CAST(:to_fit AS boolean)
                                THEN closed_files || CAST(:names AS text[]) ELSE '{}' END
        WHERE project_id = :project AND agent_id = :agent
          AND (CAST(:to_fit AS boolean) OR closed_files <> '{}')
    )
    INSERT INTO core_memory.open_files
        (project_id, agent_id, file_id, start_line, end_line, last_access_time)
    SELECT :project, :agent, w.file, w.start, w.stop, w.time
    FROM unnest(CAST(:ids AS text[]), CAST(:starts AS int[]), CAST(:ends AS int[]),
                CAST(:times AS timestamptz[])) AS w(file, start, stop, time)
    ON CONFLICT (project_id, agent_id, file_id) DO UPDATE SET
        start_line = excluded.start_line, end_line = excluded.end_line,
        last_access_time = excluded.last_access_time
    """
)
# The size of the agent's blocks, their limit and their labels.
_PROMPT = sql(
    """
    SELECT a.prompt_limit_bytes, CAST(coalesce(
               CASE WHEN a.prompt_line_numbers THEN s.numbered_bytes ELSE s.plain_bytes END, 0
           ) AS bigint) AS block_bytes,
           ARRAY(SELECT label FROM core_memory.attachments x
                 WHERE x.project_id = :project AND x.agent_id = :agent) AS labels
    FROM core_memory.prepared_agents a
    LEFT JOIN core_memory.prompt_sizes(
        ARRAY[CAST(:project AS text)], ARRAY[CAST(:agent AS text)]) s ON true
    WHERE a.project_id = :project AND a.agent_id = :agent
    """
)
_PROMPT_LIMIT = sql(
    f"SELECT {', '.join(PROMPT_LIMIT)} FROM core_memory.prepared_agents"
    " WHERE project_id = :project AND agent_id = :agent"
)
_NAMES = sql(f"SELECT d.name || '/' || f.name FROM {ATTACHED} WHERE {OF_AGENT}")
_FIRST_NAMES = sql(
    f"""
    SELECT d.name || '/' || f.name FROM {ATTACHED}
    WHERE {OF_AGENT} AND d.id = :folder AND c.state = 'text'
    ORDER BY f.name LIMIT :count
    """
)
_SCOPE = sql(
    """
    SELECT a.folder_id, (
        SELECT count(*) FROM core_memory.files f
        WHERE f.project_id = a.project_id AND f.folder_id = a.folder_id
          AND f.state IN ('parsing', 'indexing')) AS unindexed
    FROM core_memory.folder_attachments a
    WHERE a.project_id = :project AND a.agent_id = :agent
    ORDER BY a.position LIMIT :count
    """
)
# Files whose new content cannot be read are excluded: the index still has their old text.
_NAMES_OF = sql(
    f"""
    SELECT f.id, d.name || '/' || f.name AS name FROM {ATTACHED}
    WHERE {OF_AGENT} AND f.id = ANY(CAST(:files AS text[])) AND c.state <> 'failed'
    """
)
# The agent's row is locked first, as in all statements that change its windows.
_TOUCH = sql(
    """
    WITH agent AS (
        SELECT project_id, agent_id FROM core_memory.prepared_agents
        WHERE project_id = :project AND agent_id = :agent FOR NO KEY UPDATE)
    UPDATE core_memory.open_files o
    SET last_access_time = greatest(o.last_access_time, CAST(:time AS timestamptz))
    FROM agent
    WHERE o.project_id = agent.project_id AND o.agent_id = agent.agent_id
      AND o.file_id = ANY(CAST(:files AS text[]))
    """
)


class PostgresFileWindowStore:
    """Windows of agents; see `domain.file_windows.FileWindowStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def change(
        self,
        agent_id: str,
        names: Sequence[str],
        receipt: Receipt[OpenFilesResult],
        decide: PlanWindows,
        check: tuple[FileLimits, CheckUse] | None = None,
    ) -> OpenFilesResult:
        """Changes an agent's windows in one transaction; changes of one agent are serialised.

        Raises:
            NotFoundError: There is no such agent (``AGENT_NOT_FOUND``).
        """
        pairs = [name.partition("/")[::2] for name in names]
        bound = {"project": current_project(), "agent": agent_id}
        named_files = {
            **bound,
            "folders": [folder for folder, _ in pairs],
            "files": [file for _, file in pairs],
        }

        async def work(connection: DatabaseConnection) -> OpenFilesResult:
            if (await connection.execute(_LOCK_AGENT, bound)).first() is None:
                raise agent_not_found(agent_id)
            rows = (await connection.execute(_NAMED, named_files)).all() if pairs else []
            files = {row.name: _to_file(row) for row in rows}
            rows = (await connection.execute(_WINDOWS, bound)).all()
            opening = decide(files, [_to_window(row) for row in rows])
            await _store(connection, bound, opening)
            if check is not None and opening.opened:
                limits, check_use = check
                check_use(await _prompt_use(connection, bound, limits), opening)
            windows = tuple(window.as_open_file() for window in opening.windows)
            return OpenFilesResult(windows, opening.message)

        return await once(self._database, receipt, work)

    async def prompt_limit(self, agent_id: str) -> PromptLimit:
        """Returns the stored limits of an agent's prompt; `NO_LIMIT` if there are none."""
        rows = await self._database.query(_PROMPT_LIMIT, agent=agent_id)
        return to_prompt_limit(rows[0]) if rows else NO_LIMIT

    async def close_to_fit(
        self, agent_id: str, limits: FileLimits, choose: ChooseWindows, *, preview: bool
    ) -> Sequence[FileWindow]:
        """Closes the chosen windows; the prompt names the closed files until the next change."""
        bound = {"project": current_project(), "agent": agent_id}
        async with self._database.transaction() as connection:
            await connection.execute(_LOCK_AGENT, bound)
            use = await _prompt_use(connection, bound, limits)
            rows = (await connection.execute(_WINDOWS, bound)).all()
            windows = [_to_window(row) for row in rows if row.id in use.files]
            chosen = choose(windows, use.files)
            if preview:
                return chosen
            closed = tuple(window.file.id for window in chosen)
            names = [window.file.name for window in chosen]
            await _store(connection, bound, WindowPlan((), (), closed, ""), closed_to_fit=names)
            return chosen

    async def names(self, agent_id: str) -> list[str]:
        """Returns the names of all files of the agent's folders."""
        return [row[0] for row in await self._database.query(_NAMES, agent=agent_id)]

    async def first_names(self, agent_id: str, folder_id: str, count: int) -> list[str]:
        """Returns the first names, in order, of readable files of an attached folder."""
        rows = await self._database.query(
            _FIRST_NAMES, agent=agent_id, folder=folder_id, count=count
        )
        return [row[0] for row in rows]

    async def scope(self, agent_id: str, count: int) -> SearchScope:
        """Returns an agent's first folders, in order of attachment."""
        rows = await self._database.query(_SCOPE, agent=agent_id, count=count)
        return SearchScope(tuple(row.folder_id for row in rows), sum(row.unindexed for row in rows))

    async def names_of(self, agent_id: str, file_ids: Sequence[str]) -> Mapping[str, str]:
        """Returns ``FOLDER/FILE`` by id, for those files that are still attached."""
        rows = await self._database.query(_NAMES_OF, agent=agent_id, files=list(file_ids))
        return {row.id: row.name for row in rows}

    async def touch(self, agent_id: str, file_ids: Sequence[str], time: datetime) -> None:
        """Updates the last access time of open files, so that others are closed first."""
        bound = {
            "project": current_project(),
            "agent": agent_id,
            "files": list(file_ids),
            "time": time,
        }
        async with self._database.transaction() as connection:
            await connection.execute(_TOUCH, bound)


async def _prompt_use(
    connection: DatabaseConnection, bound: dict[str, str], limits: FileLimits
) -> PromptUse:
    row = (await connection.execute(_PROMPT, bound)).one_or_none()
    if row is None:
        return PromptUse(0, 0, {}, None)
    directories = await read_directories(
        PostgresViews.of_transaction(connection), bound["agent"], limits
    )
    size = len(directories.render(row.labels).encode("utf-8", "replace"))
    file_bytes = directories.file_bytes(row.labels)
    return PromptUse(row.block_bytes, size, file_bytes, row.prompt_limit_bytes)


async def _store(
    connection: DatabaseConnection,
    bound: dict[str, str],
    opening: WindowPlan,
    closed_to_fit: Sequence[str] = (),
) -> None:
    if not opening.opened and not opening.closed:
        return
    await connection.execute(
        _CHANGE,
        {
            **bound,
            "closed": list(opening.closed),
            "to_fit": bool(closed_to_fit),
            "names": list(closed_to_fit),
            "ids": [window.file.id for window in opening.opened],
            "starts": [window.start for window in opening.opened],
            "ends": [window.end for window in opening.opened],
            "times": [window.last_access_time for window in opening.opened],
        },
    )


def _to_file(row: Row) -> AttachedFile:
    return AttachedFile(row.id, row.name, ContentState(row.state), row.error, row.line_count)


def _to_window(row: Row) -> FileWindow:
    return FileWindow(_to_file(row), row.start_line, row.end_line, row.last_access_time)
