"""SQL statements of runs; each one checks a condition and changes rows atomically.

The conditions on states (``state IN …``) are generated from the transitions in `states`, so that
the database allows exactly the transitions that `states` defines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from sqlalchemy import TextClause, text

from strata.gateway.runs.domain.states import (
    ACTIVE_STATES,
    FINAL_STATES,
    OPEN_STATES,
    RunState,
    Trigger,
    sources,
)
from strata.shared.db import text_with_columns
from strata.shared.project_turns import projects_in_turn
from strata.shared.usage import COUNTS, FIELDS
from strata.shared.waiting_work import any_row_sql


def _states(states: Iterable[RunState]) -> str:
    return ", ".join(f"'{state}'" for state in sorted(states))


_ACTIVE = _states(ACTIVE_STATES)
_OPEN = _states(OPEN_STATES)
_ENDABLE = _states(sources(Trigger.COMPLETE))
USAGE_COLUMNS = {
    name: "usage_estimated" if name == "estimated" else name for name in (*FIELDS, "total_tokens")
}
"""The columns of token counts by the name of their value, those of `Usage` and their total."""

_RUN = f"""project_id, id, agent_id, conversation_id, kind, state, stop_reason, error_reason,
    error_message, error_retryable, step_count, attempt, last_sequence, request_id,
    {", ".join(USAGE_COLUMNS.values())}, create_time, start_time, finish_time, taint,
    parent_run_id, run_at, takes_slot"""
# The database computes the remaining time and the age: the clock of a gateway may differ.
_DISPATCH = f"""{_RUN}, organization_id, principal, scopes, payload, max_steps, lost_holders,
    extract(epoch FROM deadline_time - now()) AS remaining_s,
    extract(epoch FROM now() - create_time) AS age_s"""
_TAKEN = """state = 'RUNNING', owner = :owner, owner_address = :address, attempt = attempt + 1,
    lease_until = now() + make_interval(secs => :lease_s),
    start_time = coalesce(start_time, now()),
    deadline_time = coalesce(deadline_time, now() + make_interval(secs => :run_s))"""
# Events are passed as two arrays, so that batches of any size share one prepared statement.
_EVENTS = """INSERT INTO gateway.run_events (project_id, run_id, sequence, payload)
    SELECT :project_id, :run_id, batch.sequence, batch.payload
      FROM unnest(CAST(:sequences AS bigint[]), CAST(:payloads AS bytea[]))
           AS batch(sequence, payload)"""
# A repeated statement whose first result was lost changes nothing: only the holder of the fence
# writes events of a run.
_STORED = "ON CONFLICT (project_id, run_id, sequence) DO NOTHING"

# A pending approval blocks its conversation. After its deadline its calls count as denied, unless
# they are approved by default: then it is pending until a gateway approves them.
_PENDING = "decide_time IS NULL AND (default_approve OR expire_time > now())"

_LATER = "coalesce(CAST(:run_at AS timestamptz) > now(), false)"
# A group run counts as one run: the runs of its members are limited separately. Runs with a later
# start have a separate quota, because they use no resources before. One range scan of the index
# of open runs counts each quota.
_OPEN_RUNS = f"""gateway.runs
         WHERE project_id = :project_id AND state IN ({_OPEN}) AND kind <> 'SLEEPTIME'
           AND group_run_id = ''
           AND run_at > CASE WHEN {_LATER} THEN now() ELSE '-infinity' END
           AND run_at <= CASE WHEN {_LATER} THEN 'infinity' ELSE now() END"""
_OPEN_LIMIT = f"CASE WHEN {_LATER} THEN CAST(:delayed_limit AS bigint) ELSE :open_limit END"
# None of them is the run of a memory agent; the condition is that of the index of open runs.
_RUNS_OF_GROUP = f"""gateway.runs
         WHERE project_id = :project_id AND group_run_id = CAST(:group_run_id AS text)
           AND group_run_id <> '' AND state IN ({_OPEN}) AND kind <> 'SLEEPTIME'"""
_GROUP_LIMIT = ":group_limit"


def _earlier(one: str, other: str) -> str:
    """Returns the condition that one queued run is carried out before another one.

    Runs of a conversation start in the order in which the database accepted them, or in which they
    became due. Ids alone do not say that: each gateway makes them by its own clock.
    """
    return f"({one}.run_at, {one}.id) < ({other}.run_at, {other}.id)"


def _accept_sql(counted: str, limit: str) -> str:
    """Returns the statement that accepts a run.

    Args:
        counted: SQL table expression with conditions: the runs that count towards the quota.
        limit: SQL expression: the highest number of open runs.
    """
    return f"""
WITH same_request AS (
    SELECT {_DISPATCH}, payload_hash FROM gateway.runs
     WHERE project_id = :project_id AND request_id = CAST(:request_id AS text)
), active_before AS (
    SELECT id FROM gateway.runs
     WHERE project_id = :project_id AND conversation_id = :conversation_id
       AND state IN ({_ACTIVE}) AND NOT EXISTS (SELECT FROM same_request)
), active AS (
    -- Locked, so that the run ends either before this query reads it or after this statement.
    SELECT id FROM gateway.runs
     WHERE project_id = :project_id AND conversation_id = :conversation_id
       AND state IN ({_ACTIVE}) AND NOT EXISTS (SELECT FROM same_request)
       FOR UPDATE
), waiting AS (
    SELECT id FROM gateway.runs
     WHERE project_id = :project_id AND conversation_id = :conversation_id AND state = 'QUEUED'
       -- A run with a later start does not block other runs.
       AND run_at <= now()
       -- A queued run of a memory agent does not block messages to that agent.
       AND kind <> 'SLEEPTIME'
       -- A run that answers an approval starts before the runs that wait for the answer.
       AND :on_approval <> 'ANSWER'
     ORDER BY id LIMIT 1
), pending_approval AS (
    SELECT id, expire_time FROM gateway.approvals
     WHERE project_id = :project_id AND conversation_id = :conversation_id AND {_PENDING}
       AND NOT EXISTS (SELECT FROM same_request)
       FOR UPDATE
), blocking AS (
    SELECT id FROM active UNION ALL SELECT id FROM waiting
), quota AS (
    SELECT count(*) AS n FROM (SELECT FROM {counted} LIMIT {limit}) counted
), allowed AS (
    SELECT FROM quota
     WHERE quota.n < {limit}
       AND NOT EXISTS (SELECT FROM same_request)
       AND NOT (:on_busy = 'REJECT' AND EXISTS (SELECT FROM blocking))
       AND CASE :on_approval
           WHEN 'ANSWER' THEN EXISTS (SELECT FROM pending_approval WHERE id = :approval_id)
           WHEN 'DENY' THEN true
           -- A run with a later start waits for the answer when it is due.
           ELSE {_LATER} OR NOT EXISTS (SELECT FROM pending_approval) END
       -- A run that ended while this statement waited for its row may have ended with an approval
       -- request, which only the next statement can read.
       AND (EXISTS (SELECT FROM active) OR NOT EXISTS (SELECT FROM active_before))
), interrupted AS (
    -- At most one run is active. Not IN: while the table is new, PostgreSQL would read all runs.
    UPDATE gateway.runs SET state = 'CANCELLING'
     WHERE project_id = :project_id AND id = (SELECT id FROM active)
       AND state = 'RUNNING' AND :on_busy = 'INTERRUPT' AND EXISTS (SELECT FROM allowed)
    RETURNING id
), inserted AS (
    INSERT INTO gateway.runs (
        project_id, id, organization_id, principal, scopes, agent_id, conversation_id, kind,
        request_id, payload, payload_hash, max_steps, parent_run_id, group_run_id, takes_slot,
        denies_approval, run_at, state, attempt, owner, owner_address, lease_until, start_time,
        deadline_time)
    SELECT :project_id, :id, :organization_id, :principal, CAST(:scopes AS text[]), :agent_id,
           :conversation_id, :kind, CAST(:request_id AS text), :payload, :payload_hash,
           :max_steps, CAST(:parent_run_id AS text), CAST(:group_run_id AS text), :takes_slot,
           :on_approval = 'DENY', greatest(CAST(:run_at AS timestamptz), now()),
           CASE WHEN free THEN 'RUNNING' ELSE 'QUEUED' END,
           CASE WHEN free THEN 1 ELSE 0 END,
           CASE WHEN free THEN :owner END,
           CASE WHEN free THEN CAST(:address AS text) ELSE '' END,
           CASE WHEN free THEN now() + make_interval(secs => :lease_s) END,
           CASE WHEN free THEN now() END,
           CASE WHEN free THEN now() + make_interval(secs => :run_s) END
      FROM (SELECT :may_start AND NOT {_LATER}
                    AND NOT EXISTS (SELECT FROM blocking) AS free FROM allowed) conversation
        ON CONFLICT DO NOTHING
    RETURNING {_DISPATCH}, payload_hash
), answered_approval AS (
    UPDATE gateway.approvals SET decide_time = now(), answer_run_id = :id
     WHERE project_id = :project_id AND id IN (SELECT id FROM pending_approval)
       AND EXISTS (SELECT FROM inserted) AND NOT {_LATER}
), accepted AS (
    SELECT true AS is_new, * FROM inserted UNION ALL SELECT false, * FROM same_request
)
SELECT quota.n AS quota_count, {_LATER} AS is_later,
       (SELECT id FROM blocking LIMIT 1) AS busy_id,
       (SELECT id FROM interrupted) AS interrupted_id,
       (SELECT id FROM pending_approval LIMIT 1) AS pending_id,
       (SELECT expire_time FROM pending_approval LIMIT 1) AS pending_until,
       accepted.*
  FROM quota LEFT JOIN accepted ON true
"""


_ACCEPTED = (
    "quota_count, is_later, busy_id, interrupted_id, pending_id, pending_until, is_new,"
    f" {_DISPATCH}, payload_hash"
)
# Two statements, so that each run pays only for its own quota.
ACCEPT = text_with_columns(_accept_sql(_OPEN_RUNS, _OPEN_LIMIT), _ACCEPTED)
ACCEPT_IN_GROUP = text_with_columns(_accept_sql(_RUNS_OF_GROUP, _GROUP_LIMIT), _ACCEPTED)

FIND_REQUEST = text(
    f"SELECT {_RUN} FROM gateway.runs WHERE project_id = :project_id AND request_id = :request_id"
)
GET = text(f"SELECT {_RUN} FROM gateway.runs WHERE project_id = :project_id AND id = :run_id")
# Runs of memory agents that wait after a failure also have a start time; they are not delayed runs.
DELAYED_OF_PRINCIPAL = text("""
SELECT id FROM gateway.runs
 WHERE project_id = :project_id AND principal = :principal
   AND state = 'QUEUED' AND kind <> 'SLEEPTIME' AND run_at > now()
 ORDER BY id
""")


def list_statement(filters: Iterable[str], states: AbstractSet[RunState]) -> TextClause:
    """Returns the statement that lists runs with the given filters.

    Each set of filters has its own statement, so that PostgreSQL plans it with the matching index
    instead of reading all runs of the project.

    Args:
        filters: Names of filters: agent_id, conversation_id, before.
        states: The states to list; empty for all.
    """
    conditions = "".join(f" AND {_FILTERS[name]}" for name in filters)
    selected = f"SELECT {_RUN} FROM gateway.runs WHERE project_id = :project_id{conditions}"
    pages = [
        f"{selected}{condition} ORDER BY id DESC LIMIT :limit"
        for condition in _conditions_on(states)
    ]
    if len(pages) == 1:
        return text(pages[0])
    union = " UNION ALL ".join(f"({page})" for page in pages)
    return text(f"SELECT * FROM ({union}) listed ORDER BY id DESC LIMIT :limit")


def _conditions_on(states: AbstractSet[RunState]) -> Sequence[str]:
    """Returns the conditions on states of the parts of a list, each of which has an index.

    The states are constants of the statement: the indexes of runs in some states are used only if
    PostgreSQL knows that no other state is meant.
    """
    if not states:
        return ("",)
    waiting, active = states & {RunState.QUEUED}, states & ACTIVE_STATES
    is_open = " OR ".join(f"state IN ({_states(part)})" for part in (waiting, active) if part)
    ended = [f" AND state = '{state}'" for state in sorted(states & FINAL_STATES)]
    return ([f" AND ({is_open})"] if is_open else []) + ended


_FILTERS = {
    "agent_id": "agent_id = :agent_id",
    "conversation_id": "conversation_id = :conversation_id",
    "before": "id < :before",
}

# The sum of the sizes does not read the payloads. A page has at least one event, of any size.
EVENTS = text("""
SELECT run.state, run.last_sequence, run.owner_address, event.sequence, event.payload
  FROM gateway.runs run
  LEFT JOIN LATERAL (
      SELECT sequence, payload,
             sum(octet_length(payload)) OVER (ORDER BY sequence) AS bytes,
             row_number() OVER (ORDER BY sequence) AS place
        FROM (
          SELECT sequence, payload FROM gateway.run_events
           WHERE project_id = run.project_id AND run_id = run.id AND sequence > :after
           ORDER BY sequence LIMIT :limit
        ) page
  ) event ON event.place = 1 OR event.bytes <= :max_bytes
 WHERE run.project_id = :project_id AND run.id = :run_id
 ORDER BY event.sequence
""")

LOAD = text(f"""
SELECT {_DISPATCH} FROM gateway.runs
 WHERE project_id = :project_id AND id = :run_id AND owner = :owner AND state IN ({_ACTIVE})
""")

APPEND = text(f"""
WITH fence AS (
    UPDATE gateway.runs
       SET last_sequence = :last_sequence,
           lost_holders = CASE WHEN :progressed THEN 0 ELSE lost_holders END
     WHERE project_id = :project_id AND id = :run_id AND attempt = :attempt
       AND owner = :owner AND state IN ({_ACTIVE})
    RETURNING id
), stored_events AS (
    {_EVENTS} WHERE EXISTS (SELECT FROM fence) {_STORED}
)
SELECT count(*) AS held FROM fence
""")

REDISPATCH = text(f"""
UPDATE gateway.runs
   SET attempt = attempt + 1, lease_until = now() + make_interval(secs => :lease_s)
 WHERE project_id = :project_id AND id = :run_id AND attempt = :attempt
   AND owner = :owner AND state IN ({_states(sources(Trigger.TAKE_OVER))})
RETURNING attempt
""")


def webhook_deliveries_sql(ended: str, *, only: str = "true") -> str:
    """Returns the INSERT that queues a delivery of each webhook for runs that have ended.

    It is part of the statement that ends a run, so that there is one delivery if and only if the
    run has ended. A project without webhooks costs one index lookup.

    Args:
        ended: Table expression with ``run_id``, ``agent_id`` and ``state`` of the runs; the
            parameter ``project_id`` names their project.
        only: Further condition on ``webhook``.
    """
    return f"""INSERT INTO gateway.webhook_deliveries (project_id, id, webhook_id, run_id, event)
    SELECT :project_id, 'delivery-' || gen_random_uuid(), webhook.id, {ended}.run_id,
           'run.' || lower({ended}.state)
      FROM {ended} JOIN gateway.webhooks webhook
           ON webhook.project_id = :project_id AND webhook.enabled
          AND webhook.run_id IN ('', {ended}.run_id)
          AND webhook.agent_id IN ('', {ended}.agent_id)
          AND (webhook.events = '{{}}' OR 'run.' || lower({ended}.state) = ANY(webhook.events))
     WHERE {only}
        ON CONFLICT DO NOTHING"""


def delete_events_sql(runs: str) -> str:
    """Returns the SQL that deletes the events of runs; part of a larger statement.

    All events of a run or none: an incomplete stream would look complete.

    Args:
        runs: Name of the CTE with the ids of the runs; they have ended, and are marked as well.
    """
    return f"""DELETE FROM gateway.run_events event USING {runs}
         WHERE event.project_id = :project_id AND event.run_id = {runs}.id"""


def mark_events_deleted_sql(runs: str) -> str:
    """Returns the SQL that marks runs whose events are deleted by `delete_events_sql`."""
    return f"""UPDATE gateway.runs run SET events_deleted = true FROM {runs}
     WHERE run.project_id = :project_id AND run.id = {runs}.id"""


# The parts of the statement that ends a run with an approval request, or opens one again.
_DENIAL = """, denial AS (
    SELECT max(id) AS run_id, max(now()) FILTER (WHERE id IS NOT NULL) AS time FROM started
), new_approval AS (
    INSERT INTO gateway.approvals (
        project_id, id, agent_id, conversation_id, run_id, request, expire_time,
        default_approve, decide_time, answer_run_id)
    SELECT :project_id, CAST(:approval_id AS text), ended.agent_id, ended.conversation_id, :run_id,
           CAST(:approval_request AS bytea),
           now() + make_interval(secs => CAST(:approval_s AS double precision)),
           :approval_default, denial.time, denial.run_id
      FROM ended CROSS JOIN denial WHERE CAST(:approval_id AS text) IS NOT NULL
        ON CONFLICT DO NOTHING
), reopened_approval AS (
    -- Approval by default at the deadline happens only once.
    UPDATE gateway.approvals
       SET decide_time = denial.time, answer_run_id = denial.run_id,
           default_approve = default_approve AND expire_time > now()
      FROM denial
     WHERE project_id = :project_id AND id = CAST(:reopened_id AS text)
       AND answer_run_id = :run_id AND EXISTS (SELECT FROM ended)
)"""


def _finish_sql(*, waits: bool) -> str:
    """Returns the statement that ends a run, and starts the next one of its conversation.

    The payload is deleted when the run ends: recall stores the message, and an image in the payload
    must not outlive its message.

    Args:
        waits: Whether the conversation waits for an approval then. Other queued runs than those
            that deny it wait, too.
    """
    startable = "WHERE denies_approval" if waits else ""
    return f"""
WITH ended AS (
    UPDATE gateway.runs
       SET state = :state, stop_reason = :stop_reason, error_reason = CAST(:error_reason AS text),
           error_message = CAST(:error_message AS text),
           error_retryable = CAST(:error_retryable AS boolean), step_count = :step_count,
           {", ".join(f"{column} = :{name}" for name, column in USAGE_COLUMNS.items())},
           last_sequence = :last_sequence,
           taint = CAST(:taint AS text[]), finish_time = now(), owner = NULL, owner_address = '',
           lease_until = NULL, payload = CAST('' AS bytea)
     WHERE project_id = :project_id AND id = :run_id AND attempt = :attempt
       AND owner = :owner AND state IN ({_ENDABLE})
    RETURNING id AS run_id, agent_id, conversation_id, state
), deliveries AS (
    {webhook_deliveries_sql("ended")}
), stored_events AS (
    {_EVENTS} WHERE EXISTS (SELECT FROM ended) {_STORED}
), queued_run AS (
    SELECT run.id, run.denies_approval FROM gateway.runs run JOIN ended USING (conversation_id)
     WHERE run.project_id = :project_id AND run.state = 'QUEUED' AND run.run_at <= now()
       AND run.kind <> 'SLEEPTIME' AND :take_next
     ORDER BY run.run_at, run.id LIMIT 1 FOR UPDATE OF run SKIP LOCKED
), started AS (
    -- Not IN: while the table is new, PostgreSQL would read all runs of the project for it.
    UPDATE gateway.runs SET {_TAKEN}
     WHERE project_id = :project_id AND id = (SELECT id FROM queued_run {startable})
    RETURNING {_DISPATCH}
){_DENIAL if waits else ""}
SELECT (SELECT count(*) FROM ended) AS held,
       (SELECT agent_id FROM ended) AS ended_agent_id,
       (SELECT conversation_id FROM ended) AS ended_conversation_id, started.* FROM (VALUES (1)) one
  LEFT JOIN started ON true
"""


_FINISHED = f"held, ended_agent_id, ended_conversation_id, {_DISPATCH}"
# Two statements, so that only runs with an approval request pay for it.
FINISH = text_with_columns(_finish_sql(waits=False), _FINISHED)
FINISH_WAITING = text_with_columns(_finish_sql(waits=True), _FINISHED)

# A queued run ends with this statement; a running run gets the state CANCELLING, and the gateway
# that holds its lease ends it.
CANCEL = text(f"""
WITH target AS (
    SELECT id, state FROM gateway.runs
     WHERE project_id = :project_id AND id = :run_id FOR UPDATE
), cancelled AS (
    UPDATE gateway.runs run
       SET state = CASE run.state WHEN 'QUEUED' THEN 'CANCELLED' ELSE 'CANCELLING' END,
           stop_reason = CASE run.state WHEN 'QUEUED' THEN 'CANCELLED' ELSE stop_reason END,
           last_sequence = CASE run.state WHEN 'QUEUED' THEN 1 ELSE last_sequence END,
           payload = CASE run.state WHEN 'QUEUED' THEN CAST('' AS bytea) ELSE payload END,
           finish_time = CASE run.state WHEN 'QUEUED' THEN now() END
      FROM target
     WHERE run.project_id = :project_id AND run.id = target.id
       AND run.state IN ({_OPEN})
    RETURNING run.id, run.agent_id, run.state
), ended AS (
    SELECT id AS run_id, agent_id, state FROM cancelled WHERE state = 'CANCELLED'
), deliveries AS (
    {webhook_deliveries_sql("ended")}
), stored_events AS (
    INSERT INTO gateway.run_events (project_id, run_id, sequence, payload)
    SELECT :project_id, id, 1, :finished FROM cancelled WHERE state = 'CANCELLED'
)
SELECT count(*) FROM target
""")

# Approvals of a deleted agent cannot be answered, and are not approved at their deadline.
CLOSE_APPROVALS = text("""
UPDATE gateway.approvals SET decide_time = now()
 WHERE project_id = :project_id AND agent_id = :agent_id AND decide_time IS NULL
""")

_APPROVAL = f"""id, agent_id, conversation_id, run_id, request, expire_time, create_time,
    NOT ({_PENDING}) AS decided, answer_run_id"""

APPROVAL = text(
    f"SELECT {_APPROVAL} FROM gateway.approvals WHERE project_id = :project_id AND id = :id"
)


def approvals_statement(filters: Iterable[str]) -> TextClause:
    """Returns the statement that lists approvals with the given filters.

    Args:
        filters: Names of filters: agent_id, pending, after.
    """
    conditions = "".join(f" AND {_APPROVAL_FILTERS[name]}" for name in filters)
    return text(
        f"SELECT {_APPROVAL} FROM gateway.approvals WHERE project_id = :project_id{conditions}"
        " ORDER BY id LIMIT :limit"
    )


ASKED_BY = text("""
SELECT organization_id, project_id, principal, scopes, max_steps FROM gateway.runs
 WHERE project_id = :project_id AND id = :run_id
""")

_APPROVAL_FILTERS = {
    "agent_id": "agent_id = :agent_id",
    "pending": _PENDING,
    "after": "id > :after",
}

_SUMS = ", ".join(
    [
        "count(*) AS run_count",
        "coalesce(sum(step_count), 0) AS step_count",
        *(f"coalesce(sum({name}), 0) AS {name}" for name in COUNTS),
        "coalesce(bool_or(usage_estimated), false) AS usage_estimated",
    ]
)

# Usage of a group run is the usage of the runs of its members, which are counted themselves.
_COUNTED = "conversation_id NOT LIKE 'group-%'"
_USAGE_OF_PROJECT = f"""
  FROM gateway.runs
 WHERE project_id = :project_id AND finish_time >= :start AND finish_time < :end
   AND (CAST(:agent_id AS text) = '' OR agent_id = :agent_id) AND {_COUNTED}
"""
USAGE = text(f"SELECT {_SUMS} {_USAGE_OF_PROJECT}")
# Parts are numbered from 1.
USAGE_SERIES = text(f"""
SELECT width_bucket(finish_time, CAST(:starts AS timestamptz[])) AS part, {_SUMS}
{_USAGE_OF_PROJECT}
 GROUP BY part
""")

# Statements of the worker role: rows of all tenants, a limited set of columns.

USAGE_OF_PROJECTS = text(f"""
SELECT project_id, {_SUMS}
  FROM gateway.runs
 WHERE project_id = ANY(CAST(:project_ids AS text[]))
   AND finish_time >= :start AND finish_time < :end AND {_COUNTED}
 GROUP BY project_id
""")

RENEW = text(f"""
UPDATE gateway.runs SET lease_until = now() + make_interval(secs => :lease_s)
 WHERE owner = :owner AND state IN ({_ACTIVE}) AND id = ANY(CAST(:run_ids AS text[]))
RETURNING id, attempt, state
""")


def _any(condition: str) -> str:
    return any_row_sql("gateway.runs", condition)


_RUN_TO_CLAIM = f"""{_any("state = 'QUEUED' AND kind <> 'SLEEPTIME'")}
    OR {_any(f"state IN ({_ACTIVE}) AND lease_until < now()")}"""
_MEMORY_RUN_TO_CLAIM = _any("state = 'QUEUED' AND kind = 'SLEEPTIME' AND run_at <= now()")

ANY_RUN_DUE = f"{_RUN_TO_CLAIM} OR {_MEMORY_RUN_TO_CLAIM}"
"""SQL expression: whether a run waits for a gateway that claims it."""

# Whether `CLAIM` may find a run. It is cheaper, and most claims find none.
ANY_TO_CLAIM = text(f"SELECT {_RUN_TO_CLAIM}")

# Runs with an expired lease come first; gateways hold a limited number of them. Queued runs
# follow: the first of each project, then the second of each, and so on. Locked rows are skipped
# after the choice, so that only chosen rows are locked. The result has for each chosen run whether
# it was taken, and the last project that was searched. Runs of memory agents have a separate
# queue, which is claimed afterwards.
CLAIM = text(f"""
WITH RECURSIVE {projects_in_turn("gateway.runs", "state = 'QUEUED' AND kind <> 'SLEEPTIME'")},
held_runs AS (
    SELECT * FROM unnest(CAST(:held_projects AS text[]), CAST(:held_counts AS bigint[]))
                  AS held_runs (project_id, count)
), candidates AS (
    SELECT project_id, id, 0 AS turn, lease_until AS since FROM gateway.runs
     WHERE state IN ({_ACTIVE}) AND lease_until < now()
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
                     AND (earlier.state IN ({_ACTIVE})
                          OR earlier.state = 'QUEUED' AND earlier.kind <> 'SLEEPTIME'
                             AND {_earlier("earlier", "run")}))
              AND (run.denies_approval OR NOT EXISTS (
                  SELECT FROM gateway.approvals approval
                   WHERE approval.project_id = run.project_id
                     AND approval.conversation_id = run.conversation_id AND {_PENDING}))
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
     WHERE chosen.queued AND run.denies_approval AND {_PENDING}
), locked_approvals AS (
    -- Skipped, because waiting could be a deadlock: the statement that accepts an answer locks the
    -- approval first, and then waits for the run of the conversation that this statement starts.
    SELECT approval.project_id, approval.conversation_id FROM waiting_approvals
      JOIN gateway.approvals approval ON approval.project_id = waiting_approvals.project_id
           AND approval.id = waiting_approvals.id
     WHERE {_PENDING} FOR UPDATE OF approval SKIP LOCKED
), locked AS (
    SELECT run.project_id, run.id FROM chosen
      JOIN gateway.runs run ON run.project_id = chosen.project_id AND run.id = chosen.id
     WHERE (run.state = 'QUEUED' OR run.state IN ({_ACTIVE}) AND run.lease_until < now())
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
           owner = :owner, owner_address = :address, attempt = run.attempt + 1,
           lease_until = now() + make_interval(secs => :lease_s),
           start_time = coalesce(run.start_time, now()),
           deadline_time = coalesce(run.deadline_time, now() + make_interval(secs => :run_s))
      FROM locked
     WHERE run.project_id = locked.project_id AND run.id = locked.id
    RETURNING run.project_id, run.id, run.conversation_id, run.denies_approval
), denied_approvals AS (
    UPDATE gateway.approvals approval SET decide_time = now(), answer_run_id = taken.id
      FROM taken
     WHERE taken.denies_approval AND approval.project_id = taken.project_id
       AND approval.conversation_id = taken.conversation_id AND {_PENDING}
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
ANY_MEMORY_RUN_TO_CLAIM = text(f"SELECT {_MEMORY_RUN_TO_CLAIM}")

# In the same order as other runs: the first of each project, then the second, and so on. Projects
# whose memory agents used their tokens per hour wait; if the tokens per hour of the server are
# used, all projects wait. A run of a memory agent waits for all other runs of its conversation.
CLAIM_MEMORY_RUNS = text(f"""
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
                     AND (other.state IN ({_ACTIVE})
                          OR other.state = 'QUEUED' AND other.run_at <= now()
                             AND (other.kind <> 'SLEEPTIME' OR {_earlier("other", "run")})))
              AND NOT EXISTS (
                  SELECT FROM gateway.approvals approval
                   WHERE approval.project_id = run.project_id
                     AND approval.conversation_id = run.conversation_id AND {_PENDING})
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
   SET state = 'RUNNING', owner = :owner, owner_address = :address, attempt = run.attempt + 1,
       lease_until = now() + make_interval(secs => :lease_s),
       start_time = coalesce(run.start_time, now()),
       deadline_time = coalesce(run.deadline_time, now() + make_interval(secs => :run_s))
  FROM locked
 WHERE run.project_id = locked.project_id AND run.id = locked.id
RETURNING run.project_id, run.id
""")

# The primary key begins with the project, so each run is one index lookup.
MARKS = text("""
SELECT run.project_id, run.id, run.state, run.last_sequence, run.owner_address
  FROM unnest(CAST(:project_ids AS text[]), CAST(:run_ids AS text[])) AS requested(project_id, id)
  JOIN gateway.runs run ON run.project_id = requested.project_id AND run.id = requested.id
""")

# The gateway that claims a released run adds 1 to lost_holders, but this holder was not lost.
RELEASE = text(f"""
UPDATE gateway.runs
   SET lease_until = now() - interval '1 second', lost_holders = lost_holders - 1
 WHERE owner = :owner AND state IN ({_ACTIVE})
RETURNING id
""")

RELEASE_OTHERS = text(f"""
UPDATE gateway.runs SET lease_until = now() - interval '1 second'
 WHERE owner <> :owner AND state IN ({_ACTIVE}) AND lease_until >= now()
RETURNING id
""")

_APPROVAL_DUE = "default_approve AND decide_time IS NULL AND expire_time <= now()"
ANY_APPROVAL_DUE = any_row_sql("gateway.approvals", _APPROVAL_DUE, order="expire_time")
"""SQL expression: whether a deadline has passed that approves."""
DUE = text(f"""
SELECT project_id, id, expire_time FROM gateway.approvals
 WHERE {_APPROVAL_DUE}
   AND (expire_time, id) > (CAST(:after_time AS timestamptz), CAST(:after_id AS text))
   AND project_id <> ALL(CAST(:without_projects AS text[]))
 ORDER BY expire_time, id LIMIT :limit
""")
