"""Queued runs are claimed from the projects in turn; run on the real PostgreSQL."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import asyncpg
import pytest

from contract.gateway.stores import Gateways
from gateway_records import WELL, events, fence_of, new_run
from plans import with_values
from strata.gateway.due_work import ANY_DUE
from strata.gateway.runs.store import claims
from strata.shared.db import SqlStatement, sql


async def queued(gateways: Gateways, project: str, number: int) -> str:
    """Queues a run in a free conversation."""
    store, conversation = gateways.first, f"conversation-{project}-{number}"
    first = await store.accept(new_run(conversation, project))
    waiting = await store.accept(new_run(conversation, project))
    assert first.dispatch is not None
    fence = fence_of(first.dispatch, "gateway-1")
    assert await store.finish(fence, WELL, events(1), take_next=False) is None
    return waiting.run.id


async def blocked(gateways: Gateways, project: str) -> None:
    """Queues a run in a conversation with an active run."""
    for _ in range(2):
        await gateways.first.accept(new_run(f"conversation-{project}", project))


async def insert_queued(
    gateways: Gateways, project: str, count: int, kinds: Sequence[str] = ("FOREGROUND",)
) -> None:
    """Inserts queued runs in as many conversations, of the kinds in turn."""
    async with gateways.database.transaction(project_id=project) as connection:
        await connection.execute(
            sql(
                "INSERT INTO gateway.runs (project_id, id, organization_id, principal, scopes,"
                " agent_id, conversation_id, kind, payload, payload_hash, max_steps, state,"
                " attempt) SELECT :project, 'run-' || n, 'organization-1', 'key', '{}',"
                " 'agent-1', 'conversation-' || n,"
                " (CAST(:kinds AS text[]))[1 + n % cardinality(CAST(:kinds AS text[]))],"
                " '', '', 0, 'QUEUED', 0 FROM generate_series(1, CAST(:count AS int)) n"
            ),
            {"project": project, "count": count, "kinds": list(kinds)},
        )


async def test_a_backlog_of_one_project_does_not_delay_another(gateways: Gateways) -> None:
    for number in range(8):
        await queued(gateways, "project-a", number)
    late = [await queued(gateways, project, 0) for project in ("project-b", "project-c")]
    claimed = [run_id for _, run_id in await gateways.second.claim(4)]
    assert set(late) < set(claimed)
    assert len(claimed) == 4


async def test_single_slots_are_given_to_projects_in_turn(gateways: Gateways) -> None:
    for project in ("project-a", "project-b", "project-c"):
        for number in range(3):
            await queued(gateways, project, number)
    claimed = [await gateways.second.claim(1) for _ in range(9)]
    projects = [project for [(project, _)] in claimed]
    assert projects == ["project-a", "project-b", "project-c"] * 3
    assert await gateways.second.claim(1) == []


async def test_the_oldest_run_of_a_project_is_claimed_first(gateways: Gateways) -> None:
    runs = [await queued(gateways, "project-a", number) for number in (2, 0, 1)]
    assert [(await gateways.second.claim(1))[0][1] for _ in runs] == runs


async def test_share_of_a_project_includes_the_runs_that_it_holds(
    gateways: Gateways,
) -> None:
    for project in ("project-a", "project-b"):
        for number in range(5):
            await queued(gateways, project, number)
    claimed = await gateways.second.claim(20, held={"project-a": 2}, most=3)
    assert Counter(project for project, _ in claimed) == {"project-a": 1, "project-b": 3}


async def test_runs_of_dead_gateways_count_in_the_share(gateways: Gateways) -> None:
    for number in range(3):
        await gateways.first.accept(new_run(f"conversation-{number}", "project-a"))
    waiting = await queued(gateways, "project-a", 9)
    assert await gateways.first.release() == 3
    claimed = [run_id for _, run_id in await gateways.second.claim(10, most=3)]
    assert len(claimed) == 3
    assert waiting not in claimed


async def test_projects_whose_runs_cannot_start_do_not_hide_those_that_can(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.gateway.runs.store.claims._CLAIM_PROJECTS", 2)
    for number in range(5):
        await blocked(gateways, f"project-{number}")
    able = await queued(gateways, "project-9", 0)
    assert await gateways.second.claim(10) == [("project-9", able)]


async def test_checking_an_empty_queue_costs_one_statement(gateways: Gateways) -> None:
    statistics = gateways.worker.statistics
    await gateways.second.claim(10)
    before = statistics.statements
    assert await gateways.second.claim(10) == []
    assert statistics.statements - before == 1


async def test_a_run_accepted_without_start_is_queued_and_can_be_claimed(
    gateways: Gateways,
) -> None:
    accepted = await gateways.first.accept(new_run(), may_start=False)
    assert accepted.dispatch is None
    assert [run_id for _, run_id in await gateways.second.claim(10)] == [accepted.run.id]


async def test_a_claim_from_a_long_queue_reads_few_rows(gateways: Gateways) -> None:
    """20,000 queued runs of 20 projects, inserted after the last ANALYZE."""
    for project in range(20):
        await insert_queued(gateways, f"project-{project}", 1000)
    values = {
        "owner": "'gateway-2'",
        "address": "''",
        "lease_s": "10",
        "run_s": "800",
        "limit": "50",
        "held_projects": "'{}'",
        "held_counts": "'{}'",
        "most": "750",
        "after": "''",
        "projects": "64",
        "own_runs": "'{}'",
    }
    claim = with_values(claims.CLAIM, values)
    async with gateways.worker.system_transaction() as connection:
        plan = [
            row[0]
            for row in await connection.driver.fetch(
                "EXPLAIN (ANALYZE, TIMING OFF, SUMMARY OFF) " + claim
            )
        ]
    assert not [line for line in plan if "Seq Scan on runs" in line], "\n".join(plan)
    reads = [re.search(r"on runs .*actual rows=(\d+).* loops=(\d+)", line) for line in plan]
    rows = sum(int(read[1]) * int(read[2]) for read in reads if read)
    # 50 runs of each of 20 projects, the runs before them in their conversations, and taken runs.
    assert 0 < rows < 4_000, "\n".join(plan)


@pytest.mark.parametrize(
    "look",
    [
        claims.ANY_TO_CLAIM,
        claims.ANY_MEMORY_RUN_TO_CLAIM,
        sql(f"SELECT {', '.join(ANY_DUE.values())}"),
    ],
    ids=["runs", "memory", "all"],
)
async def test_the_query_for_waiting_runs_reads_no_ended_runs(
    gateways: Gateways, look: SqlStatement
) -> None:
    """PostgreSQL's statistics are from a moment in which all of the runs waited."""
    await insert_queued(gateways, "project-1", 5000, kinds=("FOREGROUND", "SLEEPTIME"))
    owner = await asyncpg.connect(gateways.urls.admin_url)
    await owner.execute("ANALYZE gateway.runs")
    async with gateways.database.transaction(project_id="project-1") as connection:
        await connection.execute(
            sql("UPDATE gateway.runs SET state = 'COMPLETED', finish_time = now()")
        )
    # Removes the entries of the queue from its indexes, and leaves the statistics as they are.
    await owner.execute("VACUUM gateway.runs")
    await owner.close()
    assert not (await gateways.worker.system_query(look))[0][0]
    async with gateways.worker.system_transaction() as connection:
        explain = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, SUMMARY OFF) {look.text}"
        plan = "\n".join(row[0] for row in await connection.driver.fetch(explain))
    [read] = re.findall(r"\AResult .*\n +Buffers: shared hit=(\d+)\n", plan)
    assert int(read) < 20, plan
