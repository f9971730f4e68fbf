"""The messages and deleted agents that wait for the indexer, over all projects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from strata.recall.domain.messages import Message
from strata.recall.store.rows import BY_ID, to_message
from strata.shared.db import Database, sql
from strata.shared.project_turns import PendingBatch, PendingInTurn
from strata.shared.search.indexing.indexer import MOST_COUNTED, IndexLag
from strata.shared.waiting_work import WaitingWork, any_row_sql

_PENDING = "index_state = 'pending'"
_DONE = sql(
    "UPDATE recall.messages SET index_state = 'indexed'"
    " FROM unnest(CAST(:ids AS text[])) AS indexed (indexed_id)"
    " WHERE project_id = :project AND id = indexed_id RETURNING id"
)
_ALL_AGAIN = sql("UPDATE recall.messages SET index_state = 'pending' WHERE index_state = 'indexed'")
# Another replica may still write messages that it read before the agent was deleted. So the
# agent is removed again when no such write can still be running.
_SWEEPABLE = "(NOT swept OR delete_time < now() - CAST(:settled AS interval))"
_FORGOTTEN = sql(
    f"""
    SELECT project_id, agent_id, delete_time < now() - CAST(:settled AS interval) AS settled
    FROM recall.forgotten_agents WHERE {_SWEEPABLE} LIMIT 100
    """
)
_SWEPT = sql(
    "UPDATE recall.forgotten_agents SET swept = true"
    " WHERE project_id = :project AND agent_id = :agent"
)
_SETTLED = sql(
    "DELETE FROM recall.forgotten_agents WHERE project_id = :project AND agent_id = :agent"
    " AND delete_time < now() - CAST(:settled AS interval)"
)

SETTLED_AFTER = timedelta(minutes=10)
"""Maximum duration of a write to the index."""


def index_work(worker: Database) -> WaitingWork[str]:
    """Returns what finds messages to index, and deleted messages and agents to remove."""
    kinds = {
        "messages": any_row_sql("recall.messages", _PENDING),
        "deleted messages": any_row_sql("recall.forgotten_messages", _SWEEPABLE),
        "deleted agents": any_row_sql("recall.forgotten_agents", _SWEEPABLE),
    }
    return WaitingWork(worker, kinds, {"settled": SETTLED_AFTER})


@dataclass(frozen=True, slots=True)
class DeletedAgent:
    """A deleted agent to remove from the index; ``settled`` if for the last time."""

    project_id: str
    agent_id: str
    settled: bool


class PendingMessages:
    """Reads and completes pending messages, for the indexer.

    Args:
        database: Connects with the database role of the service.
        worker: Connects with the worker role, which sees ids and states of all projects.
        settled_after: Maximum duration of a write to the index.
    """

    def __init__(
        self,
        database: Database,
        worker: Database,
        settled_after: timedelta = SETTLED_AFTER,
    ) -> None:
        self._database = database
        self._worker = worker
        self._in_turn = PendingInTurn(worker, "recall.messages", _PENDING, "create_time")
        self._settled = settled_after

    async def find(self, limit: int) -> PendingBatch:
        """Returns pending messages; projects take turns."""
        return await self._in_turn.find(limit)

    async def load(self, project_id: str, ids: Sequence[str]) -> list[Message]:
        """Returns messages of a project."""
        values = {"project": project_id, "ids": list(ids)}
        rows = await self._database.execute(BY_ID, values, project_id=project_id, read_only=True)
        return [to_message(row) for row in rows]

    async def done(self, project_id: str, ids: Sequence[str]) -> list[str]:
        """Records that messages are indexed; returns those that were deleted meanwhile."""
        values = {"project": project_id, "ids": list(ids)}
        rows = await self._database.execute(_DONE, values, project_id=project_id)
        there = {row.id for row in rows}
        return [id_ for id_ in ids if id_ not in there]

    async def index_all_again(self) -> int:
        """Marks all messages of all projects as not indexed; returns their number."""
        async with self._worker.system_transaction() as connection:
            return int((await connection.execute(_ALL_AGAIN)).rowcount)

    async def lag(self) -> IndexLag:
        """Returns the lag of the index; counts at most 100,000 messages."""
        return IndexLag(*await self._in_turn.lag(MOST_COUNTED))

    async def deleted_agents(self) -> list[DeletedAgent]:
        """Returns deleted agents to remove from the index."""
        rows = await self._worker.system_query(_FORGOTTEN, {"settled": self._settled})
        return [DeletedAgent(row.project_id, row.agent_id, row.settled) for row in rows]

    async def removed(self, agent: DeletedAgent) -> None:
        """Records that an agent was removed from the index."""
        values: dict[str, object] = {"project": agent.project_id, "agent": agent.agent_id}
        async with self._worker.system_transaction() as connection:
            if agent.settled:
                await connection.execute(_SETTLED, {**values, "settled": self._settled})
            else:
                await connection.execute(_SWEPT, values)
