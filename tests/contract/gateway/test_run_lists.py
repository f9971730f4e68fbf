"""Runs in some states are listed without reading the runs that completed."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from contract.gateway.stores import Gateways
from gateway_records import PROJECT, new_run
from plans import generic_plan_of, plan_of
from sql_queries import execute
from strata.gateway.runs.domain.runs import RunFilter
from strata.gateway.runs.domain.states import ACTIVE_STATES, OPEN_STATES, RunState
from strata.shared.context import Caller, RequestContext, use
from strata.shared.db import sql

_ENDED = sql("""
INSERT INTO gateway.runs (
    project_id, id, organization_id, principal, scopes, agent_id, conversation_id, kind, payload,
    payload_hash, max_steps, takes_slot, run_at, state, attempt, finish_time)
SELECT :project_id, 'run-' || number, organization_id, principal, scopes, agent_id,
       conversation_id, kind, payload, payload_hash, max_steps, takes_slot, run_at, 'COMPLETED', 1,
       now()
  FROM gateway.runs, generate_series(1, 3000) number
 WHERE project_id = :project_id AND state = 'RUNNING'
""")

_FAILED = sql("""
UPDATE gateway.runs SET state = CASE WHEN id = 'run-1999' THEN 'CANCELLED' ELSE 'FAILED' END
 WHERE project_id = :project_id AND id IN ('run-7', 'run-1999', 'run-2500')
""")

_MOSTLY_FAILED = sql("""
UPDATE gateway.runs SET state = CASE WHEN id = 'run-1999' THEN 'CANCELLED' ELSE 'FAILED' END
 WHERE project_id = :project_id AND state = 'COMPLETED' AND id NOT IN ('run-7', 'run-2500')
""")


async def listed_with_plan(
    gateways: Gateways, which: RunFilter, limit: int = 50
) -> tuple[list[str], str]:
    """Returns the ids of the listed runs, and the plan of the statement that listed them."""
    await execute(gateways.urls.admin_url, "ANALYZE gateway.runs")
    with gateways.database.statistics.record() as statements:
        runs = await gateways.second.list(PROJECT, which, before=None, limit=limit)
    (statement,) = statements
    statement = statement.replace("$1::strata.tenant", f"'{PROJECT}'")
    for field in ("agent_id", "conversation_id"):
        value = getattr(which, field)
        statement = re.sub(rf"{field} = \$\d+", f"{field} = '{value}'", statement)
    statement = re.sub(r"LIMIT \$\d+(::\w+)?", f"LIMIT {limit}", statement)
    with use(RequestContext(Caller("", PROJECT, "test"))):
        return [run.id for run in runs], await plan_of(gateways.database, statement)


@pytest.mark.parametrize(
    ("states", "runs"),
    [
        ({RunState.FAILED}, ["run-7", "run-2500"]),
        ({RunState.CANCELLED}, ["run-1999"]),
        ({RunState.FAILED, RunState.CANCELLED}, ["run-7", "run-2500", "run-1999"]),
        ({RunState.FAILED, RunState.RUNNING}, ["run-7", "run-2500", "active"]),
    ],
    ids=["failed", "cancelled", "failed or cancelled", "failed or running"],
)
async def test_failed_and_cancelled_runs_are_found_by_their_own_index(
    gateways: Gateways, states: set[RunState], runs: list[str]
) -> None:
    active = await gateways.first.accept(new_run())
    async with gateways.database.transaction(project_id=PROJECT) as connection:
        await connection.execute(_ENDED, {"project_id": PROJECT})
        await connection.execute(_FAILED, {"project_id": PROJECT})
    expected = sorted((active.run.id if run == "active" else run for run in runs), reverse=True)
    which = RunFilter(states=frozenset(states))
    listed, plan = await listed_with_plan(gateways, which)
    assert listed == expected
    assert "runs_not_completed" in plan
    assert "Seq Scan" not in plan
    assert "runs_pkey" not in plan
    last, _ = await listed_with_plan(gateways, which, limit=1)
    assert last == expected[:1]


_FAILED_OF_MANY = sql("""
UPDATE gateway.runs
   SET state = CASE WHEN id = 'run-1999' THEN 'CANCELLED' WHEN id ~ '[39]$' THEN 'FAILED'
                    ELSE state END,
       agent_id = CASE WHEN id ~ '[4-9]$' THEN 'agent-other' ELSE agent_id END,
       conversation_id = CASE WHEN id ~ '[4-9]$' THEN 'conversation-other' ELSE conversation_id END
 WHERE project_id = :project_id AND state = 'COMPLETED'
""")


@pytest.mark.parametrize("state", [RunState.FAILED, RunState.CANCELLED])
@pytest.mark.parametrize("narrowed_by", ["agent", "conversation"])
async def test_failed_runs_of_one_agent_are_found_without_its_other_runs(
    gateways: Gateways, state: RunState, narrowed_by: str
) -> None:
    """One of three runs of the project, of many agents, failed."""
    await gateways.first.accept(new_run())
    async with gateways.database.transaction(project_id=PROJECT) as connection:
        await connection.execute(_ENDED, {"project_id": PROJECT})
        await connection.execute(_FAILED_OF_MANY, {"project_id": PROJECT})
    field = f"{narrowed_by}_id"
    which = RunFilter(states=frozenset({state}), **{field: f"{narrowed_by}-other"})
    listed, plan = await listed_with_plan(gateways, which)
    expected = [f"run-{number}" for number in range(9, 3001, 10)]
    chosen = ["run-1999"] if state is RunState.CANCELLED else sorted(expected, reverse=True)
    assert (
        listed == [run for run in chosen if state is RunState.CANCELLED or run != "run-1999"][:50]
    )
    condition = rf"Index Cond: \(.*{field} = .*state = .*\)"
    assert re.search(rf"runs_not_completed_of_{narrowed_by} on runs.*\n\s+{condition}", plan), plan


@pytest.mark.parametrize(
    ("states", "runs"),
    [
        ({RunState.COMPLETED}, ["run-7", "run-2500"]),
        ({RunState.COMPLETED, RunState.RUNNING}, ["run-7", "run-2500", "active"]),
        ({RunState.COMPLETED, RunState.CANCELLED}, ["run-7", "run-2500", "run-1999"]),
    ],
    ids=["completed", "completed or running", "completed or cancelled"],
)
async def test_completed_runs_are_found_among_many_that_failed(
    gateways: Gateways, states: set[RunState], runs: list[str]
) -> None:
    active = await gateways.first.accept(new_run())
    async with gateways.database.transaction(project_id=PROJECT) as connection:
        await connection.execute(_ENDED, {"project_id": PROJECT})
        await connection.execute(_MOSTLY_FAILED, {"project_id": PROJECT})
    expected = sorted((active.run.id if run == "active" else run for run in runs), reverse=True)
    listed, plan = await listed_with_plan(gateways, RunFilter(states=frozenset(states)))
    assert listed == expected
    assert "runs_completed" in plan
    assert "Seq Scan" not in plan
    assert "runs_pkey" not in plan


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
    which = RunFilter(conversation_id=conversation_id, states=frozenset(states))
    listed, plan = await listed_with_plan(gateways, which)
    open_runs = [accepted.run for accepted in made[::-1]]
    assert listed == [run.id for run in open_runs if run.state in states]
    assert any(index in plan for index in indexes), plan
    assert "Seq Scan" not in plan
    assert "runs_pkey" not in plan
    assert "runs_of_conversation" not in plan


async def test_runs_of_a_group_are_counted_among_the_open_runs(gateways: Gateways) -> None:
    """The accepted run of each turn of a group is counted, and the ended ones are not read."""
    await gateways.first.accept(new_run())
    async with gateways.database.transaction(project_id=PROJECT) as connection:
        await connection.execute(_ENDED, {"project_id": PROJECT})
    await execute(gateways.urls.admin_url, "ANALYZE gateway.runs")
    of_group = replace(new_run("conversation-2"), group_run_id="run-of-group")
    with gateways.database.statistics.record() as statements:
        await gateways.first.accept(of_group)
    (statement,) = (recorded for recorded in statements if "INSERT INTO gateway.runs" in recorded)
    with use(RequestContext(Caller("", PROJECT, "test"))):
        plan = await generic_plan_of(gateways.database, statement)
    assert re.search(r"runs_open on runs.*\n.*Index Cond.*\n.*Filter: .*group_run_id", plan), plan
    assert "Seq Scan on runs" not in plan
