"""Reads an agent's memory from one database snapshot."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from strata.core_memory.domain.prompt.compilation import AgentMemory, FileLimits
from strata.core_memory.files.directories import show_directories
from strata.core_memory.files.store.views import PostgresViews
from strata.core_memory.store.queries import MEMORY
from strata.core_memory.store.rows import to_block
from strata.shared.context import current_project


class PostgresSnapshot:
    """Reads blocks and folders from one snapshot; see `domain.compilation.MemorySnapshot`.

    Args:
        connection: In a transaction with snapshot isolation.
    """

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._views = PostgresViews(connection)

    async def agent_memory(self, agent_id: str, known_fingerprint: str) -> AgentMemory:
        """Returns the agent's blocks, without values if the fingerprint is the known one."""
        bound = {"project": current_project(), "agent": agent_id, "known": known_fingerprint}
        rows = (await self._connection.execute(MEMORY, bound)).all()
        block_rows = [row for row in rows if row.id is not None]
        return AgentMemory(
            fingerprint=rows[0].fingerprint,
            blocks=[to_block(row) for row in block_rows],
            sizes={row.label: row.char_count for row in block_rows},
            has_folders=rows[0].has_folders,
        )

    async def directories(self, agent_id: str, labels: Sequence[str], limits: FileLimits) -> str:
        """Returns the ``<directories>`` element; empty if no folder is attached."""
        return (await show_directories(self._views, agent_id, labels, limits)).text
