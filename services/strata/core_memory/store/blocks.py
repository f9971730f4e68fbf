"""Reading blocks, and the transactions that change them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Row, TextClause, text

from strata.core_memory.domain.blocks import Block, Version
from strata.core_memory.domain.compilation import NO_BLOCKS, AgentMemory
from strata.core_memory.domain.ports import Found, Request, Unit
from strata.core_memory.store.rows import BLOCK, to_block, to_version
from strata.core_memory.store.unit import LostRaceError, PostgresUnit
from strata.shared.context import current_project
from strata.shared.db import Database
from strata.shared.errors import AbortedError, Reason

ResultT = TypeVar("ResultT")

_ATTEMPTS = 3

# Equal fingerprints mean equal blocks in equal order: then values stay where they are.
_MEMORY = text(
    """
    WITH attached AS (
        SELECT b.*, x.position FROM core_memory.attachments x
        JOIN core_memory.blocks b ON b.project_id = x.project_id AND b.id = x.block_id
        WHERE x.project_id = :project AND x.agent_id = :agent
    ), named AS (
        SELECT md5(string_agg(id || '@' || revision, ',' ORDER BY position)) AS fingerprint
        FROM attached
    )
    SELECT id, label, description, char_limit, read_only, revision, metadata, create_time,
           update_time, char_count, CAST('{}' AS text[]) AS agent_ids, fingerprint,
           CASE WHEN fingerprint = :known THEN '' ELSE value END AS value
    FROM attached CROSS JOIN named
    ORDER BY position
    """
)
_BLOCK = text(
    f"SELECT {BLOCK} FROM core_memory.blocks b WHERE b.project_id = :project AND b.id = :block"
)
_LABELLED = text(
    f"""
    WITH b AS (
        SELECT l.* FROM core_memory.attachments x
        JOIN core_memory.blocks l ON l.project_id = x.project_id AND l.id = x.block_id
        WHERE x.project_id = :project AND x.agent_id = :agent AND x.label = :label)
    SELECT {BLOCK},
           (SELECT coalesce(array_agg(x.label ORDER BY x.position), '{{}}')
              FROM core_memory.attachments x
             WHERE x.project_id = :project AND x.agent_id = :agent) AS labels
    FROM (SELECT 1) AS one LEFT JOIN b ON true
    """
)
_AS_OF = text(
    f"""
    WITH past AS (
        SELECT * FROM core_memory.block_versions
        WHERE project_id = :project AND block_id = :block AND create_time <= :time
        ORDER BY revision DESC LIMIT 1
    ), b AS (
        SELECT v.project_id, v.block_id AS id, v.label, v.value, v.description, v.char_limit,
               v.read_only, v.revision, v.metadata, l.create_time, v.create_time AS update_time
        FROM past v
        JOIN core_memory.blocks l ON l.project_id = v.project_id AND l.id = v.block_id)
    SELECT {BLOCK} FROM b
    """
)
_AGENT_BLOCKS = text(
    f"""
    SELECT {BLOCK}, x.position FROM core_memory.attachments x
    JOIN core_memory.blocks b ON b.project_id = x.project_id AND b.id = x.block_id
    WHERE x.project_id = :project AND x.agent_id = :agent
      AND (CAST(:label AS text) = '' OR x.label = :label)
      AND x.position > CAST(:after AS bigint)
    ORDER BY x.position LIMIT :count
    """
)
_PROJECT_BLOCKS = text(
    f"""
    SELECT {BLOCK} FROM core_memory.blocks b
    WHERE b.project_id = :project AND b.id > :after
    ORDER BY b.id LIMIT :count
    """
)
_PROJECT_BLOCKS_LABELLED = text(
    f"""
    SELECT {BLOCK} FROM core_memory.blocks b
    WHERE b.project_id = :project AND b.label = :label AND b.id > :after
    ORDER BY b.id LIMIT :count
    """
)
_VERSIONS = text(
    """
    SELECT * FROM core_memory.block_versions
    WHERE project_id = :project AND block_id = :block
      AND (CAST(:before AS bigint) = 0 OR revision < CAST(:before AS bigint))
    ORDER BY revision DESC LIMIT :count
    """
)
_VALUES = text(
    """
    SELECT revision, value FROM core_memory.block_versions
    WHERE project_id = :project AND block_id = :block
      AND revision = ANY(CAST(:revisions AS bigint[]))
    """
)


class PostgresBlockStore:
    """Blocks of the calling project; see `domain.ports.BlockStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def mutate(self, request: Request, work: Callable[[Unit], Awaitable[ResultT]]) -> ResultT:
        """Runs `work` in one transaction; again if it lost a race.

        Raises:
            ReplayedError: The request was done before.
            AbortedError: It lost every race (``EDIT_CONFLICT``).
        """
        for _ in range(_ATTEMPTS):
            try:
                async with self._database.transaction() as connection:
                    return await work(PostgresUnit(connection, request))
            except LostRaceError:
                continue
        raise AbortedError(
            "Others changed the same at the same time; try again.", reason=Reason.EDIT_CONFLICT
        )

    async def agent_memory(self, agent_id: str, known_fingerprint: str) -> AgentMemory:
        """Returns the agent's blocks, without values if the fingerprint is the known one."""
        rows = await self._read(_MEMORY, agent=agent_id, known=known_fingerprint)
        return AgentMemory(
            fingerprint=rows[0].fingerprint if rows else NO_BLOCKS,
            blocks=[to_block(row) for row in rows],
            sizes={row.label: row.char_count for row in rows},
        )

    async def block(self, block_id: str) -> Block | None:
        """Returns a block."""
        rows = await self._read(_BLOCK, block=block_id)
        return to_block(rows[0]) if rows else None

    async def labelled(self, agent_id: str, label: str) -> Found:
        """Returns the agent's block of a label."""
        row = (await self._read(_LABELLED, agent=agent_id, label=label))[0]
        return Found(None if row.id is None else to_block(row), tuple(row.labels))

    async def block_as_of(self, block_id: str, time: datetime) -> Block | None:
        """Returns a block as it was; None if it was not there."""
        rows = await self._read(_AS_OF, block=block_id, time=time)
        return to_block(rows[0]) if rows else None

    async def agent_blocks(
        self, agent_id: str, label: str, after: int, count: int
    ) -> list[tuple[int, Block]]:
        """Returns blocks of an agent with their positions, in order, after a position."""
        rows = await self._read(
            _AGENT_BLOCKS, agent=agent_id, label=label, after=after, count=count
        )
        return [(row.position, to_block(row)) for row in rows]

    async def project_blocks(self, label: str, after: str, count: int) -> list[Block]:
        """Returns blocks of the project in order of id, after an id."""
        if label:
            rows = await self._read(_PROJECT_BLOCKS_LABELLED, label=label, after=after, count=count)
        else:
            rows = await self._read(_PROJECT_BLOCKS, after=after, count=count)
        return [to_block(row) for row in rows]

    async def versions(self, block_id: str, before: int, count: int) -> list[Version]:
        """Returns versions of a block, newest first, before a revision."""
        rows = await self._read(_VERSIONS, block=block_id, before=before, count=count)
        return [to_version(row) for row in rows]

    async def values(self, block_id: str, revisions: Sequence[int]) -> Mapping[int, str]:
        """Returns the values of those revisions that there are."""
        rows = await self._read(_VALUES, block=block_id, revisions=list(revisions))
        return {row.revision: row.value for row in rows}

    async def _read(self, statement: TextClause, **parameters: Any) -> Sequence[Row[Any]]:
        bound = {"project": current_project(), **parameters}
        async with self._database.transaction(read_only=True) as connection:
            return (await connection.execute(statement, bound)).all()
