"""Stores archives in PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import asyncpg

from strata.archival.domain.passages import (
    MOST_TAGS,
    MOST_TAGS_COUNTED,
    AgentStats,
    Archive,
    ArchiveChange,
    Cursor,
)
from strata.archival.domain.store import NOT_REPEATABLE
from strata.archival.store.destruction import destroy_sql
from strata.archival.store.receipts import RECEIPTS
from strata.archival.store.rows import (
    ARCHIVE,
    EMPTIED,
    INSERT_ARCHIVE,
    LOCK_PASSAGES,
    archive_from_json,
    archive_to_json,
    archive_values,
    to_archive,
)
from strata.protocol.errors import AlreadyExistsError, NotFoundError, Reason
from strata.shared.context import current_project
from strata.shared.db import Database, DatabaseConnection, SqlStatement, StatementResult, sql
from strata.shared.idempotency.keys import RequestKey

# Expired passages that are not destroyed yet do not count. The cutoff is computed beforehand,
# because with row security an expression with a column cannot use the index.
_EXPIRED = """
    expiring_archives AS MATERIALIZED (
        SELECT a.id, now() - a.time_to_live * interval '1 second' AS cutoff
        FROM archival.archives a
        WHERE a.project_id = :project AND a.time_to_live > 0 AND {which}
    ), expired AS (
        SELECT p.archive_id, p.tags FROM archival.passages p, expiring_archives e
        WHERE p.project_id = :project AND p.archive_id = e.id AND NOT p.purge
          AND NOT p.deleted AND p.create_time <= e.cutoff
    )
"""
_OF_AGENT = """a.id IN (SELECT archive_id FROM archival.agent_archives
                  WHERE project_id = :project AND agent_id = :agent)"""
_CREATE = sql(
    INSERT_ARCHIVE + " ON CONFLICT (project_id, request_id) WHERE request_id <> '' DO NOTHING"
)
_GET = sql(ARCHIVE + " AND a.id = :id")
_BY_REQUEST = sql(ARCHIVE + " AND a.request_id = :request")
_UPDATE = sql(
    """
    UPDATE archival.archives SET
        name = coalesce(CAST(:name AS text), name),
        description = coalesce(CAST(:description AS text), description),
        time_to_live = coalesce(CAST(:ttl AS bigint), time_to_live),
        update_time = :now
    WHERE project_id = :project AND id = :id
    """
)
_ATTACH = sql(
    "INSERT INTO archival.agent_archives (project_id, agent_id, archive_id)"
    " VALUES (:project, :agent, :id) ON CONFLICT DO NOTHING"
)
_DETACH = sql(
    "DELETE FROM archival.agent_archives"
    " WHERE project_id = :project AND agent_id = :agent AND archive_id = :id"
)
# The agent's next passage makes another archive of its own.
_DISOWN = sql(
    "UPDATE archival.archives SET own_agent_id = ''"
    " WHERE project_id = :project AND id = :id AND own_agent_id = :agent"
)
_DISOWN_SHARED = sql(
    """
    UPDATE archival.archives a SET own_agent_id = ''
    WHERE a.project_id = :project AND a.own_agent_id = :agent AND EXISTS (
        SELECT FROM archival.agent_archives x
        WHERE x.project_id = :project AND x.archive_id = a.id AND x.agent_id <> :agent)
    """
)
_PREPARE = sql(
    "INSERT INTO archival.agents (project_id, agent_id) VALUES (:project, :agent)"
    " ON CONFLICT DO NOTHING"
)
_KNOWN = sql("SELECT 1 FROM archival.agents WHERE project_id = :project AND agent_id = :agent")
# The foreign key deletes its attachments.
_FORGET = sql("DELETE FROM archival.agents WHERE project_id = :project AND agent_id = :agent")
# Locked first, so that the next statement sees the passages that running transactions have stored.
_LOCK_ARCHIVES = sql(
    "SELECT id FROM archival.archives"
    " WHERE project_id = :project AND (id = :id OR own_agent_id = :own) ORDER BY id FOR UPDATE"
)
# Texts are deleted at once; tombstones stay until the passages are removed from the index.
_DELETE = sql(
    f"""
    WITH deleted_archives AS (
        DELETE FROM archival.archives
        WHERE project_id = :project AND (id = :id OR own_agent_id = :own) RETURNING id
    ), emptied AS (
        UPDATE archival.passages p SET {EMPTIED}
        FROM deleted_archives d
        WHERE p.project_id = :project AND p.archive_id = d.id AND NOT p.purge
    ), deleted_versions AS (
        DELETE FROM archival.passage_versions v USING archival.passages p, deleted_archives d
        WHERE p.project_id = :project AND p.archive_id = d.id AND NOT p.purge
          AND v.project_id = :project AND v.passage_id = p.id
    ), without_signature AS (
        DELETE FROM archival.passage_likeness l USING archival.passages p, deleted_archives d
        WHERE p.project_id = :project AND p.archive_id = d.id AND NOT p.purge
          AND l.project_id = :project AND l.passage_id = p.id
    ), without_vector AS (
        DELETE FROM archival.passage_vectors v USING archival.passages p, deleted_archives d
        WHERE p.project_id = :project AND p.archive_id = d.id AND NOT p.purge
          AND v.project_id = :project AND v.passage_id = p.id
    )
    SELECT (SELECT count(*) FROM deleted_archives) AS archives,
           (SELECT coalesce(sum(passage_count), 0) FROM archival.archives a, deleted_archives d
             WHERE a.project_id = :project AND a.id = d.id) AS passages
    """
)
# About half a second. A statement that deletes hundreds of thousands of passages would run into its
# time limit, each time that it is repeated.
_DESTROYED_AT_ONCE = 5000
_LARGE = sql(
    """
    SELECT a.id, a.passage_count FROM archival.archives a
    WHERE a.project_id = :project AND (a.id = :id OR a.own_agent_id = :own) AND EXISTS (
        SELECT FROM archival.passages p
        WHERE p.project_id = :project AND p.archive_id = a.id AND NOT p.purge
        ORDER BY p.create_time, p.id OFFSET :count)
    """
)
_DESTROY_SOME = destroy_sql(
    "p.archive_id = :archive", limit=f"ORDER BY p.create_time, p.id LIMIT :count {LOCK_PASSAGES}"
)
# Reads only the most frequent tags, in index order: there may be any number of tags. Archives and
# tags are read once: a scan more takes as long as the rows that it finds. A tag has the labels of
# its passages unless one of them has none: its text was then not written under taint only.
_STATS = sql(
    """
    WITH attached AS MATERIALIZED (
        SELECT a.id, a.passage_count,
               CASE WHEN a.time_to_live > 0
                    THEN now() - a.time_to_live * interval '1 second' END AS cutoff
        FROM archival.agent_archives x CROSS JOIN LATERAL (
            SELECT * FROM archival.archives
            WHERE project_id = :project AND id = x.archive_id OFFSET 0) a
        WHERE x.project_id = :project AND x.agent_id = :agent
    ), expired AS (
        SELECT p.tags, p.origin -> 'taint' AS taint FROM archival.passages p, attached e
        WHERE e.cutoff IS NOT NULL AND p.project_id = :project AND p.archive_id = e.id
          AND NOT p.purge AND NOT p.deleted AND p.create_time <= e.cutoff
    ), frequent_tags AS (
        SELECT n.* FROM attached CROSS JOIN LATERAL (
            SELECT tag, count, labelled_count, web_count, mcp_count FROM archival.archive_tags t
            WHERE t.project_id = :project AND t.archive_id = attached.id AND t.count > 0
            ORDER BY t.count DESC, t.tag LIMIT :counted) n
    ), shown_tags AS MATERIALIZED (
        SELECT tag, sum(count) AS count, sum(labelled_count) AS labelled_count,
               sum(web_count) AS web_count, sum(mcp_count) AS mcp_count
        FROM (
            SELECT * FROM frequent_tags
            UNION ALL SELECT tag, -1, -(taint IS NOT NULL)::integer,
                             -coalesce(taint ? 'web', false)::integer,
                             -coalesce(taint ? 'mcp', false)::integer
                      FROM expired, unnest(expired.tags) AS tag) used
        GROUP BY tag HAVING sum(count) > 0 ORDER BY sum(count) DESC, tag LIMIT :most
    )
    SELECT (SELECT coalesce(sum(passage_count), 0) FROM attached)
           - (SELECT count(*) FROM expired) AS passages,
           ARRAY(SELECT tag FROM shown_tags ORDER BY count DESC, tag) AS tags,
           ARRAY(SELECT ARRAY[tag, CASE WHEN web_count > 0 THEN 'web' END,
                              CASE WHEN mcp_count > 0 THEN 'mcp' END]
                 FROM shown_tags WHERE labelled_count >= count) AS labels,
           (SELECT count(DISTINCT tag) FROM frequent_tags) AS tag_count
    """
)
_TAGS = sql(
    f"""
    WITH {_EXPIRED.format(which=f"(a.id = :id OR {_OF_AGENT})")}
    SELECT tag, sum(count)::bigint AS used FROM (
        SELECT tag, count FROM archival.archive_tags
        WHERE project_id = :project AND archive_id IN (
            SELECT CAST(:id AS text) WHERE :id <> ''
            UNION SELECT archive_id FROM archival.agent_archives
                  WHERE project_id = :project AND agent_id = :agent
                    AND CAST(:agent AS text) <> '')
        UNION ALL SELECT tag, -1 FROM expired, unnest(expired.tags) AS tag) counts
    GROUP BY tag HAVING sum(count) > 0 ORDER BY tag
    """
)


class PostgresArchiveStore:
    """Implements `ArchiveStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, archive: Archive, agent_id: str, request: RequestKey) -> Archive:
        """Stores an archive, or returns the one of the same request."""
        project = current_project()
        values = {"project": project, "request": request.id, **archive_values(archive)}
        async with self._database.transaction() as connection:
            stored_answer = await RECEIPTS.claim(connection, request)
            if stored_answer is not None:
                return archive_from_json(stored_answer)
            created = await _guarded(connection, _CREATE, values, name=archive.name)
            if not created.rowcount:
                # The receipt of the first request has expired.
                result = await connection.execute(
                    _BY_REQUEST, {"project": project, "request": request.id}
                )
                made = to_archive(result.one())
                await RECEIPTS.answer(connection, request, archive_to_json(made))
                return made
            if agent_id:
                await _guarded(
                    connection,
                    _ATTACH,
                    {"project": project, "agent": agent_id, "id": archive.id},
                    agent_id=agent_id,
                )
            made = await self._read(connection, archive.id)
            await RECEIPTS.answer(connection, request, archive_to_json(made))
            return made

    async def get(self, archive_id: str) -> Archive:
        """Returns an archive."""
        async with self._database.transaction(read_only=True) as connection:
            return await self._read(connection, archive_id)

    async def page(self, agent_id: str, count: int, cursor: Cursor | None) -> list[Archive]:
        """Returns archives by id, after a cursor."""
        statement = ARCHIVE
        values: dict[str, Any] = {"project": current_project(), "count": count}
        if agent_id:
            statement += """ AND EXISTS (SELECT 1 FROM archival.agent_archives x
                WHERE x.project_id = a.project_id AND x.archive_id = a.id AND x.agent_id = :agent)
            """
            values["agent"] = agent_id
        if cursor is not None:
            statement += " AND a.id > :after"
            values["after"] = cursor[0]
        async with self._database.transaction(read_only=True) as connection:
            result = await connection.execute(
                sql(f"{statement} ORDER BY a.id LIMIT :count"), values
            )
            rows = result.all()
            if agent_id and not rows and cursor is None:
                await _check_agent(connection, agent_id)
        return [to_archive(row) for row in rows]

    async def update(
        self,
        archive_id: str,
        change: ArchiveChange,
        now: datetime,
        request: RequestKey = NOT_REPEATABLE,
    ) -> Archive:
        """Changes an archive, or returns the stored response of a repeated request."""
        async with self._database.transaction() as connection:
            stored_answer = await RECEIPTS.claim(connection, request)
            if stored_answer is not None:
                return archive_from_json(stored_answer)
            values = {
                "project": current_project(),
                "id": archive_id,
                "name": change.name,
                "description": change.description,
                "ttl": change.time_to_live,
                "now": now,
            }
            await _guarded(connection, _UPDATE, values, name=change.name or "")
            archive = await self._read(connection, archive_id)
            await RECEIPTS.answer(connection, request, archive_to_json(archive))
            return archive

    async def delete(self, archive_id: str) -> int:
        """Deletes an archive with its passages."""
        destroyed = await self._destroy_most(archive_id, own="")
        async with self._database.transaction() as connection:
            row = await self._delete(connection, archive_id, own="")
            if not row.archives:
                raise missing_archive(archive_id)
            return destroyed + int(row.passages)

    async def attach(self, agent_id: str, archive_id: str) -> Archive:
        """Attaches an archive to an agent."""
        async with self._database.transaction() as connection:
            await self._read(connection, archive_id)
            values = {"project": current_project(), "agent": agent_id, "id": archive_id}
            await _guarded(connection, _ATTACH, values, agent_id=agent_id)
            return await self._read(connection, archive_id)

    async def detach(self, agent_id: str, archive_id: str) -> None:
        """Detaches an archive from an agent; its own one becomes a shared archive."""
        async with self._database.transaction() as connection:
            await self._read(connection, archive_id)
            await _check_agent(connection, agent_id)
            values = {"project": current_project(), "agent": agent_id, "id": archive_id}
            # Before the attachment, in the order in which the deletion of an archive locks them.
            await connection.execute(_DISOWN, values)
            await connection.execute(_DETACH, values)

    async def prepare(self, agent_id: str) -> None:
        """Registers an agent; idempotent."""
        async with self._database.transaction() as connection:
            await connection.execute(_PREPARE, {"project": current_project(), "agent": agent_id})

    async def stats(self, agent_id: str) -> AgentStats:
        """Returns counts of an agent's archives without reading passages."""
        rows = await self._database.query(
            _STATS, agent=agent_id, most=MOST_TAGS, counted=MOST_TAGS + MOST_TAGS_COUNTED
        )
        row = rows[0]
        more = max(0, int(row.tag_count) - len(row.tags))
        return AgentStats(
            int(row.passages),
            tuple(row.tags),
            min(more, MOST_TAGS_COUNTED),
            {tag: tuple(filter(None, labels)) for tag, *labels in row.labels},
        )

    async def tags(self, archive_id: str, agent_id: str) -> Mapping[str, int]:
        """Returns tags with counts."""
        async with self._database.transaction(read_only=True) as connection:
            if archive_id:
                await self._read(connection, archive_id)
            result = await connection.execute(
                _TAGS, {"project": current_project(), "id": archive_id, "agent": agent_id}
            )
            rows = result.all()
            if agent_id and not rows:
                await _check_agent(connection, agent_id)
        return {row.tag: row.used for row in rows}

    async def release(self, agent_id: str) -> int:
        """Detaches all archives from an agent and deletes its own, unless another agent uses it."""
        await self._database.execute(
            _DISOWN_SHARED, {"project": current_project(), "agent": agent_id}
        )
        destroyed = await self._destroy_most("", own=agent_id)
        async with self._database.transaction() as connection:
            await connection.execute(_FORGET, {"project": current_project(), "agent": agent_id})
            row = await self._delete(connection, "", own=agent_id)
            return destroyed + int(row.passages)

    async def _destroy_most(self, archive_id: str, own: str) -> int:
        """Destroys the passages of a large archive in transactions of their own, up to the last.

        Returns:
            How many passages the archive has lost, without those that were deleted before.
        """
        values = {**_archive_values(archive_id, own), "count": _DESTROYED_AT_ONCE}
        large = (await self._database.execute(_LARGE, values, read_only=True)).one_or_none()
        if large is None:
            return 0
        values = {"project": current_project(), "archive": large.id, "count": _DESTROYED_AT_ONCE}
        destroyed = _DESTROYED_AT_ONCE
        while destroyed == _DESTROYED_AT_ONCE:
            destroyed = (await self._database.execute(_DESTROY_SOME, values)).one().passages
        return int(large.passage_count)

    async def _delete(self, connection: DatabaseConnection, archive_id: str, own: str) -> Any:
        values = _archive_values(archive_id, own)
        await connection.execute(_LOCK_ARCHIVES, values)
        return (await connection.execute(_DELETE, values)).one()

    async def _read(self, connection: DatabaseConnection, archive_id: str) -> Archive:
        result = await connection.execute(_GET, {"project": current_project(), "id": archive_id})
        row = result.one_or_none()
        if row is None:
            raise missing_archive(archive_id)
        return to_archive(row)


def _archive_values(archive_id: str, own: str) -> dict[str, Any]:
    # "-" matches no archive; the empty text would match every shared archive.
    return {"project": current_project(), "id": archive_id, "own": own or "-"}


def missing_archive(archive_id: str) -> NotFoundError:
    """Returns the error for an archive that the project does not have."""
    return NotFoundError(
        f"Archive {archive_id} does not exist.",
        reason=Reason.ARCHIVE_NOT_FOUND,
        metadata={"id": archive_id},
    )


def missing_agent(agent_id: str) -> NotFoundError:
    """Returns the error for an agent that the project does not have."""
    return NotFoundError(
        f"Agent {agent_id} does not exist.",
        reason=Reason.AGENT_NOT_FOUND,
        metadata={"id": agent_id},
    )


async def _check_agent(connection: DatabaseConnection, agent_id: str) -> None:
    values = {"project": current_project(), "agent": agent_id}
    if (await connection.execute(_KNOWN, values)).one_or_none() is None:
        raise missing_agent(agent_id)


async def _guarded(
    connection: DatabaseConnection,
    statement: SqlStatement,
    values: dict[str, Any],
    *,
    name: str = "",
    agent_id: str = "",
) -> StatementResult:
    """Executes a statement; raises the domain error for a violated constraint."""
    try:
        return await connection.execute(statement, values)
    except asyncpg.IntegrityConstraintViolationError as error:
        if is_unknown_agent(error):
            raise missing_agent(agent_id) from error
        raise _name_taken(name) from error


def is_unknown_agent(error: asyncpg.IntegrityConstraintViolationError) -> bool:
    """Returns whether the error is the violated foreign key to the agent."""
    return error.constraint_name == "agent_archives_agent"


def _name_taken(name: str) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"There is already an archive named {name!r}.",
        reason=Reason.NAME_TAKEN,
        metadata={"name": name},
    )
