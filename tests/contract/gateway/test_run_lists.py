"""Open runs are listed without reading the runs that have ended."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import text

from contract.gateway.stores import Gateways
from gateway_records import PROJECT, new_run
from plans import plan_of
from sql_queries import execute
from strata.gateway.runs.domain.runs import RunFilter
from strata.gateway.runs.domain.states import ACTIVE_STATES, OPEN_STATES, RunState
from strata.shared.context import Caller, RequestContext, use

_ENDED = text("""
INSERT INTO gateway.runs (
    project_id, id, organization_id, principal, scopes, agent_id, conversation_id, kind, payload,
    payload_hash, max_steps, takes_slot, run_at, state, attempt, finish_time)
SELECT :project_id, 'run-' || number, organization_id, principal, scopes, agent_id,
       conversation_id, kind, payload, payload_hash, max_steps, takes_slot, run_at, 'COMPLETED', 1,
       now()
  FROM gateway.runs, generate_series(1, 3000) number
 WHERE project_id = :project_id AND state = 'RUNNING'
""")


@pytest.mark.parametrize(
    ("states", "indexes"),
    [
        (OPEN_STATES, {"runs_queue"}),
        ({RunState.QUEUED}, {"runs_queue"}),
        (ACTIVE_STATES, {"runs_one_active", "runs_held"}),
    ],
    ids=["open", "queued", "active"],
)
@pytest.mark.parametrize("conversation_id", ["", "conversation-1"])
async def test_open_runs_are_found_by_their_own_indexes(
    gateways: Gateways, states: set[RunState], indexes: set[str], conversation_id: str
) -> None:
    made = [await gateways.first.accept(new_run()) for _ in range(3)]
    async with gateways.database.transaction(project_id=PROJECT) as connection:
        await connection.execute(_ENDED, {"project_id": PROJECT})
    await execute(gateways.urls.admin_url, "ANALYZE gateway.runs")
    which = RunFilter(conversation_id=conversation_id, states=frozenset(states))
    with gateways.database.statistics.record() as statements:
        runs = await gateways.second.list(PROJECT, which, before=None, limit=50)
    open_runs = [accepted.run for accepted in made[::-1]]
    assert [run.id for run in runs] == [run.id for run in open_runs if run.state in states]
    (statement,) = statements
    statement = statement.replace("$1::strata.tenant", f"'{PROJECT}'")
    statement = re.sub(r"conversation_id = \$\d+", "conversation_id = 'conversation-1'", statement)
    statement = re.sub(r"LIMIT \$\d+(::\w+)?", "LIMIT 50", statement)
    with use(RequestContext(Caller("", PROJECT, "test"))):
        plan = await plan_of(gateways.database, statement)
    assert any(index in plan for index in indexes), plan
    assert "Seq Scan" not in plan
    assert "runs_pkey" not in plan
    assert "runs_of_conversation" not in plan
