"""Reads blocks from PostgreSQL, and runs the transactions that change them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TypeVar

from strata.core_memory.domain.blocks import Block, Version
from strata.core_memory.domain.ports import LabelledBlock, Unit
from strata.core_memory.domain.prompt.compilation import AgentMemory, FileLimits, blocks_fingerprint
from strata.core_memory.files.domain.directories import Directories, read_directories
from strata.core_memory.files.store.views import PostgresViews
from strata.core_memory.store.queries import (
    AGENT_BLOCKS,
    AGENT_BLOCKS_AS_OF,
    AS_OF,
    BLOCK_BY_ID,
    LABELLED,
    LAST_LABELLED,
    MEMORY,
    MEMORY_VIEWS,
    VALUES,
    VERSIONS,
    project_blocks_statement,
)
from strata.core_memory.store.rows import to_block, to_version
from strata.core_memory.store.statements import KNOWN_AGENT
from strata.core_memory.store.unit import PostgresUnit
from strata.protocol.errors import AbortedError, Reason
from strata.shared.context import current_project
from strata.shared.db import Database, DatabaseConnection, Row
from strata.shared.idempotency.keys import RequestKey
from strata.shared.idempotency.request_table import LostRaceError, answered_or

ResultT = TypeVar("ResultT")

_ATTEMPTS = 3
_NO_END = 2**31
_AFTER_ALL_REVISIONS = 2**63 - 1


class PostgresBlockStore:
    """Blocks of the calling project; see `domain.ports.BlockStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def mutate(
        self, request: RequestKey, work: Callable[[Unit], Awaitable[ResultT]]
    ) -> ResultT:
        """Runs `work` in one transaction; again if it raises `LostRaceError`.

        Raises:
            ReplayedError: The request was done before.
            AbortedError: It lost every race (``EDIT_CONFLICT``).
        """

        async def find_answer() -> None:
            async with self._database.transaction(read_only=True) as connection:
                await PostgresUnit(connection, request).check_request()

        return await answered_or(self._mutate(request, work), find_answer)

    async def _mutate(
        self, request: RequestKey, work: Callable[[Unit], Awaitable[ResultT]]
    ) -> ResultT:
        for _ in range(_ATTEMPTS):
            try:
                async with self._database.transaction() as connection:
                    return await work(PostgresUnit(connection, request))
            except LostRaceError:
                continue
        raise AbortedError(
            "Concurrent requests changed the same data; try again.", reason=Reason.EDIT_CONFLICT
        )

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[PostgresSnapshot]:
        """Opens a snapshot: all its reads are in one transaction and see the same state."""
        async with self._database.transaction(snapshot=True) as connection:
            yield PostgresSnapshot(connection)

    async def agent_memory(self, agent_id: str, known_fingerprint: str) -> AgentMemory:
        """Returns the agent's blocks, without values if the fingerprint is the known one."""
        return _agent_memory(
            await self._database.query(MEMORY, agent=agent_id, known=known_fingerprint)
        )

    async def directories(self, agent_id: str, limits: FileLimits) -> Directories:
        """Returns the folders with the texts of open files, and the fingerprint of the memory."""
        views = PostgresViews(self._database.query, MEMORY_VIEWS)
        return await read_directories(views, agent_id, limits)

    async def agent_memory_as_of(self, agent_id: str, time: datetime) -> AgentMemory:
        """Returns the agent's blocks as they were, without folders."""
        rows = await self.agent_blocks(agent_id, "", 0, _NO_END, time)
        blocks = [block for _, block in rows]
        return AgentMemory(
            fingerprint=blocks_fingerprint(blocks),
            blocks=blocks,
            sizes={block.label: len(block.value) for block in blocks},
        )

    async def block(self, block_id: str) -> Block | None:
        """Returns a block, deleted or not."""
        rows = await self._database.query(BLOCK_BY_ID, block=block_id)
        return to_block(rows[0]) if rows else None

    async def knows_agent(self, agent_id: str) -> bool:
        """Returns whether there is such an agent."""
        return bool(await self._database.query(KNOWN_AGENT, agent=agent_id))

    async def labelled(self, agent_id: str, label: str) -> LabelledBlock:
        """Returns the agent's block of a label."""
        row = (await self._database.query(LABELLED, agent=agent_id, label=label))[0]
        return LabelledBlock(None if row.id is None else to_block(row), tuple(row.labels))

    async def last_labelled(self, agent_id: str, label: str) -> Block | None:
        """Returns the block that the agent had last under a label, deleted or not."""
        rows = await self._database.query(LAST_LABELLED, agent=agent_id, label=label)
        return to_block(rows[0]) if rows else None

    async def block_as_of(self, block_id: str, time: datetime) -> Block | None:
        """Returns a block as it was; None if it was not there."""
        rows = await self._database.query(AS_OF, block=block_id, time=time)
        return to_block(rows[0]) if rows else None

    async def agent_blocks(
        self, agent_id: str, label: str, after: int, count: int, time: datetime | None = None
    ) -> list[tuple[int, Block]]:
        """Returns blocks of an agent with their positions, in order, after a position."""
        page = {"agent": agent_id, "label": label, "after": after, "count": count}
        if time is None:
            rows = await self._database.query(AGENT_BLOCKS, **page)
        else:
            rows = await self._database.query(AGENT_BLOCKS_AS_OF, **page, time=time)
        return [(row.position, to_block(row)) for row in rows]

    async def project_blocks(
        self, label: str, after: str, count: int, *, deleted: bool = False
    ) -> list[Block]:
        """Returns blocks of the project in order of id, after an id; deleted ones if asked to."""
        filters = {"label": label} if label else {}
        statement = project_blocks_statement(labelled=bool(label), deleted=deleted)
        rows = await self._database.query(statement, after=after, count=count, **filters)
        return [to_block(row) for row in rows]

    async def versions(self, block_id: str, before: int, count: int) -> list[Version]:
        """Returns versions of a block, newest first, before a revision; 0 for the newest ones."""
        # Decided here: a statement that compares only if there is a bound would not use the index
        # for it, and read all newer versions.
        rows = await self._database.query(
            VERSIONS, block=block_id, before=before or _AFTER_ALL_REVISIONS, count=count
        )
        return [to_version(row) for row in rows]

    async def values(self, block_id: str, revisions: Sequence[int]) -> Mapping[int, str]:
        """Returns the values of those revisions that exist."""
        rows = await self._database.query(VALUES, block=block_id, revisions=list(revisions))
        return {row.revision: row.value for row in rows}


class PostgresSnapshot:
    """Reads blocks and folders from one snapshot; see `domain.prompt.compilation.MemorySnapshot`.

    Args:
        connection: In a transaction with snapshot isolation.
    """

    def __init__(self, connection: DatabaseConnection) -> None:
        self._connection = connection
        self._views = PostgresViews.of_transaction(connection)

    async def agent_memory(self, agent_id: str, known_fingerprint: str) -> AgentMemory:
        """Returns the agent's blocks, without values if the fingerprint is the known one."""
        bound = {"project": current_project(), "agent": agent_id, "known": known_fingerprint}
        return _agent_memory((await self._connection.execute(MEMORY, bound)).all())

    async def directories(self, agent_id: str, limits: FileLimits) -> Directories:
        """Returns the folders with the texts of open files."""
        return await read_directories(self._views, agent_id, limits)


def _agent_memory(rows: Sequence[Row]) -> AgentMemory:
    """Returns the memory that the rows of `MEMORY` describe."""
    block_rows = [row for row in rows if row.id is not None]
    return AgentMemory(
        fingerprint=rows[0].fingerprint,
        blocks=[to_block(row) for row in block_rows],
        sizes={row.label: row.char_count for row in block_rows},
        has_folders=rows[0].has_folders,
    )
