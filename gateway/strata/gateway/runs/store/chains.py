"""`chains.ChainStore` in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from strata.gateway.runs.domain.chains import AskedRun, Chain, ChainLink, Wait
from strata.gateway.runs.domain.states import RunState
from strata.gateway.runs.store.base import RunTables, run_not_found
from strata.gateway.runs.store.conditions import OPEN
from strata.shared.db import sql

# A run before its parent; a parent that was erased ends the chain.
_CHAIN = sql("""
WITH RECURSIVE chain AS (
    SELECT id, agent_id, conversation_id, state, parent_run_id, 1 AS place
      FROM gateway.runs WHERE project_id = :project_id AND id = :run_id
     UNION ALL
    SELECT run.id, run.agent_id, run.conversation_id, run.state, run.parent_run_id,
           chain.place + 1
      FROM chain JOIN gateway.runs run
           ON run.project_id = :project_id AND run.id = chain.parent_run_id
     WHERE chain.place < :limit
)
SELECT id, agent_id, conversation_id, state FROM chain ORDER BY place
""")

# The run of a conversation waits for the unanswered messages that its agent has sent, and so for
# the runs of the conversations of these messages.
_WAIT = f"""
    SELECT run.id AS run_id, run.agent_id, message_run.conversation_id
      FROM gateway.runs run
      JOIN gateway.runs message_run
           ON message_run.project_id = run.project_id AND message_run.parent_run_id = run.id
          AND message_run.kind = 'FOREGROUND' AND message_run.state IN ({OPEN})"""
_HOLDS = "WHERE run.project_id = :project_id AND run.state = 'RUNNING'"
_WAITS = sql(f"""
WITH RECURSIVE waits AS ({_WAIT}
     {_HOLDS} AND run.conversation_id = :conversation_id
     UNION {_WAIT}
      JOIN waits ON run.conversation_id = waits.conversation_id
     {_HOLDS}
)
SELECT run_id, agent_id, conversation_id FROM waits
""")

_AWAITED = sql(f"""
SELECT id FROM gateway.runs
 WHERE project_id = :project_id AND parent_run_id = :run_id
   AND kind = 'FOREGROUND' AND state IN ({OPEN})
 ORDER BY id
""")

_ASKED = sql("""
SELECT id AS run_id, agent_id, state FROM gateway.runs
 WHERE project_id = :project_id AND parent_run_id = :run_id AND kind = 'FOREGROUND'
 ORDER BY id
""")


class PostgresChains(RunTables):
    """Reads which runs started or wait for which other runs."""

    async def chain(self, project_id: str, run_id: str, limit: int) -> Chain:
        """See `ChainStore.chain`."""
        values = {"project_id": project_id, "run_id": run_id, "limit": limit}
        rows = (await self._read(_CHAIN, values)).all()
        if not rows:
            raise run_not_found(run_id)
        return [
            ChainLink(row.id, row.agent_id, row.conversation_id, RunState(row.state))
            for row in rows
        ]

    async def waits(self, project_id: str, conversation_id: str) -> Sequence[Wait]:
        """See `ChainStore.waits`."""
        values = {"project_id": project_id, "conversation_id": conversation_id}
        rows = await self._read(_WAITS, values)
        return [Wait(row.run_id, row.agent_id, row.conversation_id) for row in rows]

    async def asked(self, project_id: str, run_id: str) -> Sequence[AskedRun]:
        """See `ChainStore.asked`."""
        values = {"project_id": project_id, "run_id": run_id}
        rows = await self._read(_ASKED, values)
        return [AskedRun(row.run_id, row.agent_id, RunState(row.state)) for row in rows]

    async def awaited(self, project_id: str, run_id: str) -> Sequence[str]:
        """See `ChainStore.awaited`."""
        values = {"project_id": project_id, "run_id": run_id}
        return (await self._read(_AWAITED, values)).scalars()
