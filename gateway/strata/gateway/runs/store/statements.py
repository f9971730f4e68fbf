"""SQL statements that accept, read and end runs, and store their events.

Each one checks a condition and changes rows atomically.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from strata.gateway.runs.domain.states import (
    ACTIVE_STATES,
    FINAL_STATES,
    RunState,
    Trigger,
    sources,
)
from strata.gateway.runs.store.base import TAKE_LEASE
from strata.gateway.runs.store.conditions import ACTIVE, OPEN, PENDING_APPROVAL, states_sql
from strata.gateway.runs.store.rows import DISPATCH_COLUMNS, RUN_COLUMNS, USAGE_COLUMNS
from strata.shared.db import SqlStatement, sql

_ENDABLE = states_sql(sources(Trigger.COMPLETE))
# Events are passed as two arrays, so that batches of any size share one prepared statement.
_EVENTS = """INSERT INTO gateway.run_events (project_id, run_id, sequence, payload)
    SELECT :project_id, :run_id, batch.sequence, batch.payload
      FROM unnest(CAST(:sequences AS bigint[]), CAST(:payloads AS bytea[]))
           AS batch(sequence, payload)"""
# A repeated statement whose first result was lost changes nothing: only the holder of the fence
# writes events of a run.
_STORED = "ON CONFLICT (project_id, run_id, sequence) DO NOTHING"

_LATER = "coalesce(CAST(:run_at AS timestamptz) > now(), false)"
# A group run counts as one run: the runs of its members are limited separately. Runs with a later
# start have a separate quota, because they use no resources before. One range scan of the index
# of open runs counts each quota.
_OPEN_RUNS = f"""gateway.runs
         WHERE project_id = :project_id AND state IN ({OPEN}) AND kind <> 'SLEEPTIME'
           AND group_run_id = ''
           AND run_at > CASE WHEN {_LATER} THEN now() ELSE '-infinity' END
           AND run_at <= CASE WHEN {_LATER} THEN 'infinity' ELSE now() END"""
_OPEN_LIMIT = f"CASE WHEN {_LATER} THEN CAST(:delayed_limit AS bigint) ELSE :open_limit END"
# Groups have no runs of memory agents; `kind` is in the condition so that PostgreSQL uses the
# partial index of open runs.
_RUNS_OF_GROUP = f"""gateway.runs
         WHERE project_id = :project_id AND group_run_id = CAST(:group_run_id AS text)
           AND group_run_id <> '' AND state IN ({OPEN}) AND kind <> 'SLEEPTIME'"""
_GROUP_LIMIT = ":group_limit"

# The answer to an approval request is carried out before the messages that wait for it. Runs of a
# conversation start in the order of `run_at`, so an answer that has to be queued goes before them.
_RUN_AT = """CASE WHEN :on_approval = 'ANSWER' THEN least(now(), (
               SELECT min(run_at) - interval '1 microsecond' FROM gateway.runs
                WHERE project_id = :project_id AND conversation_id = :conversation_id
                  AND state = 'QUEUED' AND kind <> 'SLEEPTIME'))
           ELSE greatest(CAST(:run_at AS timestamptz), now()) END"""


def _accept_sql(counted: str, limit: str) -> str:
    """Returns the statement that accepts a run.

    Args:
        counted: SQL table expression with conditions: the runs that count towards the quota.
        limit: SQL expression: the highest number of open runs.
    """
    return f"""
WITH same_request AS (
    SELECT {DISPATCH_COLUMNS}, payload_hash FROM gateway.runs
     WHERE project_id = :project_id AND request_id = CAST(:request_id AS text)
), active_before AS (
    SELECT id FROM gateway.runs
     WHERE project_id = :project_id AND conversation_id = :conversation_id
       AND state IN ({ACTIVE}) AND NOT EXISTS (SELECT FROM same_request)
), active AS (
    -- Locked, so that the run ends either before this query reads it or after this statement.
    SELECT id FROM gateway.runs
     WHERE project_id = :project_id AND conversation_id = :conversation_id
       AND state IN ({ACTIVE}) AND NOT EXISTS (SELECT FROM same_request)
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
     WHERE project_id = :project_id AND conversation_id = :conversation_id AND {PENDING_APPROVAL}
       AND NOT EXISTS (SELECT FROM same_request)
       FOR UPDATE
), blocking AS (
    SELECT id FROM active UNION ALL SELECT id FROM waiting
), quota AS (
    SELECT count(*) AS n FROM (SELECT FROM {counted} LIMIT {limit}) counted
), allowed AS (
    SELECT FROM quota
     -- The runs that use the quota up may wait for this answer.
     WHERE (quota.n < {limit} OR :on_approval = 'ANSWER')
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
           :on_approval = 'DENY', {_RUN_AT},
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
    RETURNING {DISPATCH_COLUMNS}, payload_hash
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


# Two statements, so that each run pays only for its own quota.
ACCEPT = sql(_accept_sql(_OPEN_RUNS, _OPEN_LIMIT))
ACCEPT_IN_GROUP = sql(_accept_sql(_RUNS_OF_GROUP, _GROUP_LIMIT))

FIND_REQUEST = sql(f"""
SELECT {RUN_COLUMNS} FROM gateway.runs
 WHERE project_id = :project_id AND request_id = :request_id
""")
GET = sql(f"SELECT {RUN_COLUMNS} FROM gateway.runs WHERE project_id = :project_id AND id = :run_id")
# Runs of memory agents that wait after a failure also have a start time; they are not delayed runs.
DELAYED_OF_PRINCIPAL = sql("""
SELECT id FROM gateway.runs
 WHERE project_id = :project_id AND principal = :principal
   AND state = 'QUEUED' AND kind <> 'SLEEPTIME' AND run_at > now()
 ORDER BY id
""")


# The primary key begins with the project, so each run is one index lookup.
MARKS = sql("""
SELECT run.project_id, run.id, run.state, run.last_sequence, run.owner_address
  FROM unnest(CAST(:project_ids AS text[]), CAST(:run_ids AS text[])) AS requested(project_id, id)
  JOIN gateway.runs run ON run.project_id = requested.project_id AND run.id = requested.id
""")


def list_statement(filters: Iterable[str], states: AbstractSet[RunState]) -> SqlStatement:
    """Returns the statement that lists runs with the given filters.

    Each set of filters has its own statement, so that PostgreSQL plans it with the matching index
    instead of reading all runs of the project.

    Args:
        filters: Names of filters: agent_id, conversation_id, before.
        states: The states to list; empty for all.
    """
    conditions = "".join(f" AND {_FILTERS[name]}" for name in filters)
    selected = f"SELECT {RUN_COLUMNS} FROM gateway.runs WHERE project_id = :project_id{conditions}"
    pages = [
        f"{selected}{condition} ORDER BY id DESC LIMIT :limit"
        for condition in _conditions_on(states)
    ]
    if len(pages) == 1:
        return sql(pages[0])
    union = " UNION ALL ".join(f"({page})" for page in pages)
    return sql(f"SELECT * FROM ({union}) listed ORDER BY id DESC LIMIT :limit")


def _conditions_on(states: AbstractSet[RunState]) -> Sequence[str]:
    """Returns the conditions on states, one for each part of a list that has its own index.

    The states are constants of the statement: the indexes of runs in some states are used only if
    PostgreSQL knows that no other state is meant.
    """
    if not states:
        return ("",)
    waiting, active = states & {RunState.QUEUED}, states & ACTIVE_STATES
    is_open = " OR ".join(f"state IN ({states_sql(part)})" for part in (waiting, active) if part)
    ended = [f" AND state = '{state}'" for state in sorted(states & FINAL_STATES)]
    return ([f" AND ({is_open})"] if is_open else []) + ended


_FILTERS = {
    "agent_id": "agent_id = :agent_id",
    "conversation_id": "conversation_id = :conversation_id",
    "before": "id < :before",
}

# The sum of the sizes does not read the payloads. A page has at least one event, of any size.
EVENTS = sql("""
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

LOAD = sql(f"""
SELECT {DISPATCH_COLUMNS} FROM gateway.runs
 WHERE project_id = :project_id AND id = :run_id AND owner = :owner AND state IN ({ACTIVE})
""")

APPEND = sql(f"""
WITH fence AS (
    UPDATE gateway.runs
       SET last_sequence = :last_sequence,
           lost_holders = CASE WHEN :progressed THEN 0 ELSE lost_holders END
     WHERE project_id = :project_id AND id = :run_id AND attempt = :attempt
       AND owner = :owner AND state IN ({ACTIVE})
    RETURNING id
), stored_events AS (
    {_EVENTS} WHERE EXISTS (SELECT FROM fence) {_STORED}
)
SELECT count(*) AS held FROM fence
""")

REDISPATCH = sql(f"""
UPDATE gateway.runs
   SET attempt = attempt + 1, lease_until = now() + make_interval(secs => :lease_s)
 WHERE project_id = :project_id AND id = :run_id AND attempt = :attempt
   AND owner = :owner AND state IN ({states_sql(sources(Trigger.TAKE_OVER))})
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


# Approval by default at the deadline happens only once.
_DEFAULT_APPROVE_AGAIN = "default_approve = default_approve AND expire_time > now()"
# The parts of the statement that ends a run with an approval request, or opens one again.
_DENIAL = f""", denial AS (
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
    UPDATE gateway.approvals
       SET decide_time = denial.time, answer_run_id = denial.run_id, {_DEFAULT_APPROVE_AGAIN}
      FROM denial
     WHERE project_id = :project_id AND id = CAST(:reopened_id AS text)
       AND answer_run_id = :run_id AND EXISTS (SELECT FROM ended)
)"""


def _finish_sql(*, waits: bool) -> str:
    """Returns the statement that ends a run, and starts the next one of its conversation.

    The payload is deleted when the run ends: recall stores the message, and an image in the payload
    must not outlive its message.

    Args:
        waits: Whether the conversation then waits for an approval. Until it is decided, only queued
            runs that deny it can start.
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
    UPDATE gateway.runs SET state = 'RUNNING', {TAKE_LEASE}
     WHERE project_id = :project_id AND id = (SELECT id FROM queued_run {startable})
    RETURNING {DISPATCH_COLUMNS}
){_DENIAL if waits else ""}
SELECT (SELECT count(*) FROM ended) AS held,
       (SELECT agent_id FROM ended) AS ended_agent_id,
       (SELECT conversation_id FROM ended) AS ended_conversation_id, started.* FROM (VALUES (1)) one
  LEFT JOIN started ON true
"""


# Two statements, so that only runs with an approval request pay for it.
FINISH = sql(_finish_sql(waits=False))
FINISH_WAITING = sql(_finish_sql(waits=True))

# A queued run ends with this statement; a running run gets the state CANCELLING, and the gateway
# that holds its lease ends it. The answer of a queued run is stored nowhere else, so its approval
# request is open again.
CANCEL = sql(f"""
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
       AND run.state IN ({OPEN})
    RETURNING run.id, run.agent_id, run.conversation_id, run.state, run.denies_approval
), ended AS (
    SELECT id AS run_id, agent_id, conversation_id, state, denies_approval FROM cancelled
     WHERE state = 'CANCELLED'
), reopened_approval AS (
    UPDATE gateway.approvals approval
       SET decide_time = NULL, answer_run_id = NULL, {_DEFAULT_APPROVE_AGAIN}
      FROM ended
     WHERE approval.project_id = :project_id AND approval.agent_id = ended.agent_id
       AND approval.conversation_id = ended.conversation_id
       AND approval.answer_run_id = ended.run_id AND NOT ended.denies_approval
), deliveries AS (
    {webhook_deliveries_sql("ended")}
), stored_events AS (
    INSERT INTO gateway.run_events (project_id, run_id, sequence, payload)
    SELECT :project_id, id, 1, :finished FROM cancelled WHERE state = 'CANCELLED'
)
SELECT count(*) FROM target
""")
