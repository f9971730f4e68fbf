"""Leases of runs in PostgreSQL: gateways claim waiting runs, renew their leases and release them.

The statements have the worker role: rows of all tenants, a limited set of columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import asyncpg

from strata.gateway.runs.domain.memory_agents import MemoryBudget
from strata.gateway.runs.domain.runs import RenewedLease
from strata.gateway.runs.domain.states import RunState
from strata.gateway.runs.store.base import TAKE_LEASE, LeaseTerms, RunTables
from strata.gateway.runs.store.conditions import ACTIVE, PENDING_APPROVAL
from strata.shared.db import Database, Row, sql
from strata.shared.project_turns import projects_in_turn
from strata.shared.waiting_work import any_row_sql

# Projects with queued runs that one claim statement searches, and claim statements of one call.
_CLAIM_PROJECTS = 64
_CLAIM_STATEMENTS = 8
_ANY_NUMBER = 2**31 - 1


def _earlier(one: str, other: str) -> str:
    """Returns the condition that one queued run is carried out before another one.

    Runs of a conversation start in the order in which the database accepted them, or in which they
    became due. Ids alone do not say that: each gateway makes them by its own clock.
    """
    return f"({one}.run_at, {one}.id) < ({other}.run_at, {other}.id)"


def _any(condition: str) -> str:
    return any_row_sql("gateway.runs", condition)


_RUN_TO_CLAIM = f"""{_any("state = 'QUEUED' AND kind <> 'SLEEPTIME'")}
    OR {_any(f"state IN ({ACTIVE}) AND lease_until < now()")}"""
_MEMORY_RUN_TO_CLAIM = _any("state = 'QUEUED' AND kind = 'SLEEPTIME' AND run_at <= now()")

ANY_RUN_DUE = f"{_RUN_TO_CLAIM} OR {_MEMORY_RUN_TO_CLAIM}"
"""SQL expression: whether a run waits for a gateway that claims it."""

# Whether `CLAIM` may find a run. It is cheaper, and most claims find none.
ANY_TO_CLAIM = sql(f"SELECT {_RUN_TO_CLAIM}")

# Runs with an expired lease come first; gateways hold a limited number of them. Queued runs
# follow: the first of each project, then the second of each, and so on. Locked rows are skipped
# after the choice, so that only chosen rows are locked. The result has for each chosen run whether
# it was taken, and the last project that was searched. Runs of memory agents have a separate
# queue, which is claimed afterwards.
CLAIM = sql(f"""
WITH RECURSIVE {projects_in_turn("gateway.runs", "state = 'QUEUED' AND kind <> 'SLEEPTIME'")},
held_runs AS (
    SELECT * FROM unnest(CAST(:held_projects AS text[]), CAST(:held_counts AS bigint[]))
                  AS held_runs (project_id, count)
), candidates AS (
    SELECT project_id, id, 0 AS turn, lease_until AS since FROM gateway.runs
     WHERE state IN ({ACTIVE}) AND lease_until < now()
       AND (owner <> :owner OR id <> ALL(CAST(:own_runs AS text[])))
     UNION ALL
    SELECT in_turn.project_id, ready.id, in_turn.turn, ready.run_at
      FROM in_turn CROSS JOIN LATERAL (
           SELECT run.id, run.run_at FROM gateway.runs run
            WHERE run.project_id = in_turn.project_id
              AND run.state = 'QUEUED' AND run.kind <> 'SLEEPTIME' AND run.run_at <= now()
              AND NOT EXISTS (
                  SELECT FROM gateway.runs earlier
                   WHERE earlier.project_id = run.project_id
                     AND earlier.conversation_id = run.conversation_id
                     AND (earlier.state IN ({ACTIVE})
                          OR earlier.state = 'QUEUED' AND earlier.kind <> 'SLEEPTIME'
                             AND {_earlier("earlier", "run")}))
              AND (run.denies_approval OR NOT EXISTS (
                  SELECT FROM gateway.approvals approval
                   WHERE approval.project_id = run.project_id
                     AND approval.conversation_id = run.conversation_id AND {PENDING_APPROVAL}))
            ORDER BY run.run_at LIMIT :limit) ready
), ranked AS (
    SELECT *, turn > 0 AS queued,
           row_number() OVER (PARTITION BY project_id ORDER BY turn, since, id) AS place,
           row_number() OVER (PARTITION BY project_id, turn ORDER BY since, id) AS round
      FROM candidates
), chosen AS (
    SELECT ranked.* FROM ranked LEFT JOIN held_runs USING (project_id)
     WHERE ranked.place <= :most - coalesce(held_runs.count, 0)
     ORDER BY queued, round, turn, since LIMIT :limit
), waiting_approvals AS (
    SELECT approval.project_id, approval.id, approval.conversation_id FROM chosen
      JOIN gateway.runs run ON run.project_id = chosen.project_id AND run.id = chosen.id
      JOIN gateway.approvals approval ON approval.project_id = run.project_id
           AND approval.conversation_id = run.conversation_id
     WHERE chosen.queued AND run.denies_approval AND {PENDING_APPROVAL}
), locked_approvals AS (
    -- Skipped, because waiting could be a deadlock: the statement that accepts an answer locks the
    -- approval first, and then waits for the run of the conversation that this statement starts.
    SELECT approval.project_id, approval.conversation_id FROM waiting_approvals
      JOIN gateway.approvals approval ON approval.project_id = waiting_approvals.project_id
           AND approval.id = waiting_approvals.id
     WHERE {PENDING_APPROVAL} FOR UPDATE OF approval SKIP LOCKED
), locked AS (
    SELECT run.project_id, run.id FROM chosen
      JOIN gateway.runs run ON run.project_id = chosen.project_id AND run.id = chosen.id
     WHERE (run.state = 'QUEUED' OR run.state IN ({ACTIVE}) AND run.lease_until < now())
       AND (NOT EXISTS (
                SELECT FROM waiting_approvals approval
                 WHERE approval.project_id = run.project_id
                   AND approval.conversation_id = run.conversation_id)
            OR EXISTS (
                SELECT FROM locked_approvals approval
                 WHERE approval.project_id = run.project_id
                   AND approval.conversation_id = run.conversation_id))
       FOR UPDATE OF run SKIP LOCKED
), taken AS (
    UPDATE gateway.runs run
       SET state = CASE run.state WHEN 'QUEUED' THEN 'RUNNING' ELSE run.state END,
           lost_holders = run.lost_holders + CASE run.state WHEN 'QUEUED' THEN 0 ELSE 1 END,
           {TAKE_LEASE}
      FROM locked
     WHERE run.project_id = locked.project_id AND run.id = locked.id
    RETURNING run.project_id, run.id, run.conversation_id, run.denies_approval
), denied_approvals AS (
    UPDATE gateway.approvals approval SET decide_time = now(), answer_run_id = taken.id
      FROM taken
     WHERE taken.denies_approval AND approval.project_id = taken.project_id
       AND approval.conversation_id = taken.conversation_id AND {PENDING_APPROVAL}
)
SELECT searched.projects, searched.last_project, chosen.project_id, chosen.id, chosen.round,
       coalesce(chosen.queued, false) AS queued, taken.id IS NOT NULL AS taken
  FROM (SELECT count(*) AS projects,
               (SELECT project_id FROM in_turn ORDER BY turn DESC LIMIT 1) AS last_project
          FROM in_turn) searched
  LEFT JOIN chosen ON true
  LEFT JOIN taken ON taken.project_id = chosen.project_id AND taken.id = chosen.id
 ORDER BY chosen.queued, chosen.round, chosen.turn, chosen.since
""")

# Whether `CLAIM_MEMORY_RUNS` may find a run.
ANY_MEMORY_RUN_TO_CLAIM = sql(f"SELECT {_MEMORY_RUN_TO_CLAIM}")

# In the same order as other runs: the first of each project, then the second, and so on. Projects
# whose memory agents used their tokens per hour wait; if the tokens per hour of the server are
# used, all projects wait. A run of a memory agent waits for all other runs of its conversation.
CLAIM_MEMORY_RUNS = sql(f"""
WITH RECURSIVE {
    projects_in_turn("gateway.runs", "state = 'QUEUED' AND kind = 'SLEEPTIME' AND run_at <= now()")
},
token_limits AS (
    SELECT CAST(:project_tokens AS bigint) AS of_project,
           CAST(:server_tokens AS bigint) AS of_server
), held_runs AS (
    SELECT * FROM unnest(CAST(:held_projects AS text[]), CAST(:held_counts AS bigint[]))
                  AS held_runs (project_id, count)
), used_tokens AS (
    SELECT project_id, sum(total_tokens) AS tokens FROM gateway.runs
     WHERE kind = 'SLEEPTIME' AND finish_time > now() - interval '1 hour'
       AND EXISTS (SELECT FROM in_turn)
       AND (SELECT greatest(of_project, of_server) FROM token_limits) > 0
     GROUP BY project_id
), within_limits AS (
    SELECT in_turn.* FROM in_turn CROSS JOIN token_limits LEFT JOIN used_tokens USING (project_id)
     WHERE (of_project = 0 OR coalesce(used_tokens.tokens, 0) < of_project)
       AND (of_server = 0 OR coalesce((SELECT sum(tokens) FROM used_tokens), 0) < of_server)
), ranked AS (
    SELECT within_limits.project_id, within_limits.turn, ready.id,
           row_number() OVER (PARTITION BY within_limits.project_id ORDER BY ready.run_at, ready.id)
               AS round
      FROM within_limits CROSS JOIN LATERAL (
           SELECT run.id, run.run_at FROM gateway.runs run
            WHERE run.project_id = within_limits.project_id
              AND run.state = 'QUEUED' AND run.kind = 'SLEEPTIME' AND run.run_at <= now()
              AND NOT EXISTS (
                  SELECT FROM gateway.runs other
                   WHERE other.project_id = run.project_id
                     AND other.conversation_id = run.conversation_id
                     AND (other.state IN ({ACTIVE})
                          OR other.state = 'QUEUED' AND other.run_at <= now()
                             AND (other.kind <> 'SLEEPTIME' OR {_earlier("other", "run")})))
              AND NOT EXISTS (
                  SELECT FROM gateway.approvals approval
                   WHERE approval.project_id = run.project_id
                     AND approval.conversation_id = run.conversation_id AND {PENDING_APPROVAL})
            ORDER BY run.run_at LIMIT :limit) ready
), chosen AS (
    SELECT ranked.* FROM ranked LEFT JOIN held_runs USING (project_id)
     WHERE ranked.round <= :most - coalesce(held_runs.count, 0)
     ORDER BY round, turn LIMIT :limit
), locked AS (
    SELECT run.project_id, run.id FROM chosen
      JOIN gateway.runs run ON run.project_id = chosen.project_id AND run.id = chosen.id
     WHERE run.state = 'QUEUED' FOR UPDATE OF run SKIP LOCKED
)
UPDATE gateway.runs run
   SET state = 'RUNNING', {TAKE_LEASE}
  FROM locked
 WHERE run.project_id = locked.project_id AND run.id = locked.id
RETURNING run.project_id, run.id
""")

RENEW = sql(f"""
UPDATE gateway.runs SET lease_until = now() + make_interval(secs => :lease_s)
 WHERE owner = :owner AND state IN ({ACTIVE}) AND id = ANY(CAST(:run_ids AS text[]))
RETURNING id, attempt, state
""")


# The gateway that claims a released run adds 1 to lost_holders, but this holder was not lost.
RELEASE = sql(f"""
UPDATE gateway.runs
   SET lease_until = now() - interval '1 second', lost_holders = lost_holders - 1
 WHERE owner = :owner AND state IN ({ACTIVE})
RETURNING id
""")

RELEASE_OTHERS = sql(f"""
UPDATE gateway.runs SET lease_until = now() - interval '1 second'
 WHERE owner <> :owner AND state IN ({ACTIVE}) AND lease_until >= now()
RETURNING id
""")


class PostgresClaims(RunTables):
    """Claims, renews and releases the leases of this gateway."""

    def __init__(self, database: Database, worker: Database, terms: LeaseTerms) -> None:
        super().__init__(database, worker, terms)
        # The next claim begins with the project after this one.
        self._last_project = ""
        # The last project of the previous claim of runs of memory agents.
        self._last_memory_project = ""

    async def claim(
        self,
        limit: int,
        *,
        held: Mapping[str, int] | None = None,
        most: int | None = None,
        own_runs: Iterable[str] = (),
    ) -> Sequence[tuple[str, str]]:
        """See `RunStore.claim`."""
        counts = Counter(held or {})
        claimed: list[tuple[str, str]] = []
        if not (await self._worker.system_query(ANY_TO_CLAIM))[0][0]:
            return claimed
        # If no run of the searched projects can start, the next statement searches the projects
        # after them.
        for _ in range(_CLAIM_STATEMENTS):
            before = self._last_project
            values = {
                **self._terms.parameters(),
                "limit": limit - len(claimed),
                "held_projects": list(counts),
                "held_counts": list(counts.values()),
                "most": _ANY_NUMBER if most is None else most,
                "after": before,
                "projects": _CLAIM_PROJECTS,
                "own_runs": list(own_runs),
            }
            try:
                result = await self._worker.system_execute(CLAIM, values)
            except asyncpg.IntegrityConstraintViolationError:
                # A new run of a conversation started at the same time; the next poll reads it.
                return claimed
            rows = result.all()
            started = [(row["project_id"], row["id"]) for row in rows if row["taken"]]
            claimed += started
            counts.update(project_id for project_id, _ in started)
            self._last_project = _next_turn(rows, before, limit=values["limit"])
            if len(claimed) >= limit or not (self._last_project or before):
                break
        return claimed

    async def claim_memory_runs(
        self, limit: int, *, held: Mapping[str, int], most: int, budget: MemoryBudget
    ) -> Sequence[tuple[str, str]]:
        """See `MemoryRunStore.claim_memory_runs`."""
        if not (await self._worker.system_query(ANY_MEMORY_RUN_TO_CLAIM))[0][0]:
            return []
        before = self._last_memory_project
        rows = await self._claim_memory_runs(limit, held, most, budget)
        # The next claim continues after the last of these projects, or from the first one.
        self._last_memory_project = max((project_id for project_id, _ in rows), default="")
        if not rows and before:
            return await self.claim_memory_runs(limit, held=held, most=most, budget=budget)
        return rows

    async def _claim_memory_runs(
        self, limit: int, held: Mapping[str, int], most: int, budget: MemoryBudget
    ) -> Sequence[tuple[str, str]]:
        values = {
            **self._terms.parameters(),
            "limit": limit,
            "held_projects": list(held),
            "held_counts": list(held.values()),
            "most": most,
            "after": self._last_memory_project,
            "projects": _CLAIM_PROJECTS,
            "project_tokens": budget.project,
            "server_tokens": budget.server,
        }
        try:
            rows = (await self._worker.system_execute(CLAIM_MEMORY_RUNS, values)).all()
        except asyncpg.IntegrityConstraintViolationError:
            # A new run took a conversation at the same moment; the next poll continues.
            return []
        return [(row.project_id, row.id) for row in rows]

    async def renew(self, run_ids: Sequence[str]) -> Sequence[RenewedLease]:
        """See `RunStore.renew`."""
        terms = self._terms
        values = {
            "owner": terms.owner,
            "lease_s": terms.lease_s,
            "run_ids": list(run_ids),
        }
        return [
            RenewedLease(row.id, row.attempt, row.state == RunState.CANCELLING)
            for row in await self._worker.system_execute(RENEW, values)
        ]

    async def release(self) -> int:
        """See `RunStore.release`."""
        values = {"owner": self._terms.owner}
        return len((await self._worker.system_execute(RELEASE, values)).all())

    async def release_others(self) -> int:
        """See `RunStore.release_others`."""
        values = {"owner": self._terms.owner}
        return len((await self._worker.system_execute(RELEASE_OTHERS, values)).all())


def _next_turn(rows: Sequence[Row], before: str, *, limit: object) -> str:
    """Returns the project after which the next claim begins; empty to begin with the first."""
    chosen_rows = [row for row in rows if row["id"] is not None]
    if len(chosen_rows) == limit:
        queued = [row for row in chosen_rows if row["queued"]]
        if not queued:
            return before
        if queued[-1]["round"] == 1:
            return str(queued[-1]["project_id"])
    # A run was taken from each searched project that has one which may start.
    first = rows[0]
    return str(first["last_project"]) if first["projects"] == _CLAIM_PROJECTS else ""
