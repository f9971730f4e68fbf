"""One mutation of blocks: its statements, and what their refusals mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import CursorResult, TextClause, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from strata.core_memory.domain.blocks import Authorship, Block, agent_not_found
from strata.core_memory.domain.editing import label_taken
from strata.core_memory.domain.ports import Found, ReplayedError, Request
from strata.core_memory.store.rows import (
    AUTHORSHIP_VALUES,
    BLOCK,
    BLOCK_COLUMNS,
    RECORD,
    VERSION_COLUMNS,
    authorship_parameters,
    records,
    to_block,
)
from strata.shared.context import current_project
from strata.shared.db.errors import driver_error
from strata.shared.errors import AlreadyExistsError, Reason

_NOTED = """
    noted AS (
        INSERT INTO core_memory.requests (project_id, request_id, digest, response)
        SELECT :project, :request, CAST(:digest AS bytea), CAST(:response AS bytea)
        WHERE CAST(:request AS text) <> '')
"""
_GIVEN = f"given AS (SELECT * FROM jsonb_to_recordset(CAST(:records AS jsonb)) AS r({RECORD}))"
_INSERT_BLOCKS = f"""
    INSERT INTO core_memory.blocks ({BLOCK_COLUMNS})
    SELECT :project, id, label, value, description, char_limit, read_only, revision, metadata,
           :made_for, create_time, update_time
    FROM given
"""
_INSERT_VERSIONS = f"""
    INSERT INTO core_memory.block_versions ({VERSION_COLUMNS})
    SELECT :project, id, revision, label, value, description, char_limit, read_only, metadata,
           {AUTHORSHIP_VALUES}
    FROM given
"""

_SEEN = text(
    "SELECT digest, response FROM core_memory.requests"
    " WHERE project_id = :project AND request_id = :request"
)
# The request and the lock in one statement. The lock is in a part of its own because
# an outer join cannot be locked; it gives the newest row, after waiting for it.
_LOCK_BLOCK = text(
    f"""
    WITH b AS (
        SELECT * FROM core_memory.blocks
        WHERE project_id = :project AND id = :block
        FOR NO KEY UPDATE)
    SELECT s.digest, s.response, {BLOCK}
    FROM (SELECT 1) AS one
    LEFT JOIN core_memory.requests s ON s.project_id = :project AND s.request_id = :request
    LEFT JOIN b ON true
    """
)
_LOCK_LABELLED = text(
    f"""
    WITH b AS (
        SELECT l.* FROM core_memory.attachments x
        JOIN core_memory.blocks l ON l.project_id = x.project_id AND l.id = x.block_id
        WHERE x.project_id = :project AND x.agent_id = :agent AND x.label = :label
        FOR NO KEY UPDATE OF l)
    SELECT s.digest, s.response, {BLOCK},
           (SELECT coalesce(array_agg(x.label ORDER BY x.position), '{{}}')
              FROM core_memory.attachments x
             WHERE x.project_id = :project AND x.agent_id = :agent) AS labels
    FROM (SELECT 1) AS one
    LEFT JOIN core_memory.requests s ON s.project_id = :project AND s.request_id = :request
    LEFT JOIN b ON true
    """
)
_INSERT = text(
    f"""
    WITH {_GIVEN}, {_NOTED}, made AS ({_INSERT_BLOCKS}), attached AS (
        INSERT INTO core_memory.attachments (project_id, agent_id, block_id, label)
        SELECT :project, :agent, id, label FROM given WHERE CAST(:agent AS text) <> '')
    {_INSERT_VERSIONS}
    """
)
_INSERT_ALL = text(f"WITH {_GIVEN}, made AS ({_INSERT_BLOCKS}) {_INSERT_VERSIONS}")
_UPDATE = text(
    f"""
    WITH {_GIVEN}, {_NOTED}, changed AS (
        UPDATE core_memory.blocks b SET
            label = g.label, value = g.value, description = g.description,
            char_limit = g.char_limit, read_only = g.read_only, revision = g.revision,
            metadata = g.metadata, update_time = g.update_time
        FROM given g WHERE b.project_id = :project AND b.id = g.id)
    {_INSERT_VERSIONS}
    """
)
_DELETE = text("DELETE FROM core_memory.blocks WHERE project_id = :project AND id = :block")
_ATTACH = text(
    """
    INSERT INTO core_memory.attachments (project_id, agent_id, block_id, label)
    SELECT :project, :agent, r.id, r.label
    FROM unnest(CAST(:ids AS text[]), CAST(:labels AS text[])) WITH ORDINALITY r(id, label, ordinal)
    ORDER BY r.ordinal
    ON CONFLICT (project_id, agent_id, block_id) DO NOTHING
    """
)
_DETACH = text(
    "DELETE FROM core_memory.attachments"
    " WHERE project_id = :project AND agent_id = :agent AND block_id = :block"
)
_BEGIN_AGENT = text(
    "INSERT INTO core_memory.prepared_agents (project_id, agent_id) VALUES (:project, :agent)"
    " ON CONFLICT DO NOTHING"
)
_LABELS = text(
    "SELECT id, label FROM core_memory.blocks"
    " WHERE project_id = :project AND id = ANY(CAST(:ids AS text[]))"
    " ORDER BY id FOR KEY SHARE"
)
_ATTACHED = text(
    f"""
    SELECT {BLOCK} FROM core_memory.attachments x
    JOIN core_memory.blocks b ON b.project_id = x.project_id AND b.id = x.block_id
    WHERE x.project_id = :project AND x.agent_id = :agent
    ORDER BY x.position
    """
)
# Locked first, so that the next statement sees what others attached meanwhile.
_LOCK_MADE_FOR = text(
    "SELECT id FROM core_memory.blocks WHERE project_id = :project AND made_for = :agent"
    " ORDER BY id FOR UPDATE"
)
_DETACH_ALL = text(
    """
    WITH forgotten AS (
        DELETE FROM core_memory.prepared_agents
        WHERE project_id = :project AND agent_id = :agent)
    DELETE FROM core_memory.attachments
    WHERE project_id = :project AND agent_id = :agent
    RETURNING block_id
    """
)
_DELETE_MADE_FOR = text(
    """
    DELETE FROM core_memory.blocks b
    WHERE b.project_id = :project AND b.made_for = :agent AND NOT EXISTS (
        SELECT 1 FROM core_memory.attachments x
        WHERE x.project_id = b.project_id AND x.block_id = b.id)
    RETURNING b.id
    """
)
_KNOWN_AGENT = text(
    "SELECT 1 FROM core_memory.prepared_agents WHERE project_id = :project AND agent_id = :agent"
)
_NOTE = text(f"WITH {_NOTED} SELECT 1")


class LostRaceError(Exception):
    """Another transaction did the same first; what it did is visible to the next attempt."""


class PostgresUnit:
    """One transaction over the blocks of the calling project; see `domain.ports.Unit`."""

    def __init__(self, connection: AsyncConnection, request: Request) -> None:
        self._connection = connection
        self._request = request
        self._project = current_project()

    async def check_request(self) -> None:
        """Raises `ReplayedError` if the request was done before."""
        if self._request.id:
            row = (await self._run(_SEEN, request=self._request.id)).first()
            if row is not None:
                self._replay(row)

    async def lock_block(self, block_id: str) -> Block | None:
        """Returns the newest state of a block and keeps others from changing it."""
        result = await self._run(_LOCK_BLOCK, request=self._request.id, block=block_id)
        row = result.one()
        self._replay(row)
        return None if row.id is None else to_block(row)

    async def lock_labelled(self, agent_id: str, label: str) -> Found:
        """Returns what `lock_block` does for the agent's block of that label."""
        result = await self._run(
            _LOCK_LABELLED, request=self._request.id, agent=agent_id, label=label
        )
        row = result.one()
        self._replay(row)
        return Found(None if row.id is None else to_block(row), tuple(row.labels))

    async def insert(
        self,
        block: Block,
        authorship: Authorship,
        *,
        agent_id: str,
        made_for: str,
        response: bytes,
    ) -> None:
        """Stores a new block, its first version, and the response."""
        await self._run(
            _INSERT,
            taken=block.label,
            records=records(block),
            agent=agent_id,
            made_for=made_for,
            **authorship_parameters(authorship),
            **self._receipt(response),
        )

    async def update(self, block: Block, authorship: Authorship, *, response: bytes) -> None:
        """Stores a changed block, its version, and the response."""
        await self._run(
            _UPDATE,
            taken=block.label,
            records=records(block),
            **authorship_parameters(authorship),
            **self._receipt(response),
        )

    async def delete(self, block_id: str) -> bool:
        """Deletes a block with its history and attachments; says whether there was one."""
        return (await self._run(_DELETE, block=block_id)).rowcount > 0

    async def attach(self, agent_id: str, labels: Mapping[str, str]) -> None:
        """Shows blocks to an agent, in order, after those that it has."""
        await self._run(
            _ATTACH,
            taken=", ".join(labels.values()),
            agent=agent_id,
            ids=list(labels),
            labels=list(labels.values()),
        )

    async def detach(self, agent_id: str, block_id: str) -> bool:
        """Hides a block from an agent; says whether it had it."""
        return (await self._run(_DETACH, agent=agent_id, block=block_id)).rowcount > 0

    async def knows_agent(self, agent_id: str) -> bool:
        """Says whether there is such an agent."""
        return (await self._run(_KNOWN_AGENT, agent=agent_id)).first() is not None

    async def begin_agent(self, agent_id: str) -> bool:
        """Notes that the agent's first blocks are made; False if they were before."""
        return (await self._run(_BEGIN_AGENT, agent=agent_id)).rowcount > 0

    async def insert_all(
        self, blocks: Sequence[Block], authorship: Authorship, *, made_for: str
    ) -> None:
        """Stores new blocks with their first versions, not attached."""
        await self._run(
            _INSERT_ALL,
            records=records(*blocks),
            made_for=made_for,
            **authorship_parameters(authorship),
        )

    async def labels(self, block_ids: Sequence[str]) -> Mapping[str, str]:
        """Returns the labels, by id, of those ids that are blocks of the project."""
        return {row.id: row.label for row in await self._run(_LABELS, ids=list(block_ids))}

    async def attached(self, agent_id: str) -> list[Block]:
        """Returns all blocks of an agent in order of attachment."""
        return [to_block(row) for row in await self._run(_ATTACHED, agent=agent_id)]

    async def release(self, agent_id: str) -> tuple[int, int]:
        """Detaches everything from an agent and deletes what was made for it alone."""
        await self._run(_LOCK_MADE_FOR, agent=agent_id)
        detached = {row[0] for row in await self._run(_DETACH_ALL, agent=agent_id)}
        deleted = {row[0] for row in await self._run(_DELETE_MADE_FOR, agent=agent_id)}
        return len(deleted), len(detached - deleted)

    async def finish(self, response: bytes) -> None:
        """Stores the response of a mutation whose write did not."""
        if self._request.id:
            await self._run(_NOTE, **self._receipt(response))

    def _receipt(self, response: bytes) -> dict[str, Any]:
        return {
            "request": self._request.id,
            "digest": self._request.digest,
            "response": response,
        }

    def _replay(self, row: Any) -> None:
        if row.digest is None:
            return
        if row.digest != self._request.digest:
            raise AlreadyExistsError(
                f"The request_id {self._request.id!r} was used before for something else.",
                reason=Reason.REQUEST_ID_REUSED,
                metadata={"request_id": self._request.id},
            )
        raise ReplayedError(row.response)

    async def _run(
        self, statement: TextClause, *, taken: str = "", **parameters: Any
    ) -> CursorResult[Any]:
        """Executes a statement; `taken` is the label that another block may have already."""
        try:
            return await self._connection.execute(
                statement, {"project": self._project, **parameters}
            )
        except IntegrityError as error:
            match getattr(driver_error(error), "constraint_name", None):
                case "attachments_label":
                    raise label_taken(taken) from error
                case "attachments_agent":
                    raise agent_not_found(parameters["agent"]) from error
                case "requests_once" | "attachments_block":
                    raise LostRaceError from error
            raise
