"""The SQL of runs. Each statement is one decision, taken by the database at one moment.

The guards (``state IN …``) are made from the transitions in `domain`, so that the
database allows exactly what the domain does.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import TextClause, text

from strata.gateway.runs.states import ACTIVE_STATES, OPEN_STATES, RunState, Trigger, sources


def _states(states: Iterable[RunState]) -> str:
    return ", ".join(f"'{state}'" for state in sorted(states))


_ACTIVE = _states(ACTIVE_STATES)
_OPEN = _states(OPEN_STATES)
_ENDABLE = _states(sources(Trigger.COMPLETE))
_RUN = """project_id, id, agent_id, conversation_id, kind, state, stop_reason, error_reason,
    error_message, error_retryable, step_count, attempt, last_sequence, request_id,
    prompt_tokens, completion_tokens, total_tokens, cached_input_tokens, cache_write_tokens,
    reasoning_tokens, usage_estimated, create_time, start_time, finish_time, taint,
    parent_run_id"""
_DISPATCH = f"""{_RUN}, organization_id, principal, scopes, payload, max_steps, deadline_time"""
_TAKEN = """state = 'RUNNING', owner = :owner, attempt = attempt + 1,
    lease_until = now() + make_interval(secs => :lease_s),
    start_time = coalesce(start_time, now()),
    deadline_time = coalesce(deadline_time, now() + make_interval(secs => :run_s))"""
# Events travel as two arrays, so that a batch of any size is one and the same statement.
_EVENTS = """INSERT INTO gateway.run_events (project_id, run_id, sequence, payload)
    SELECT :project_id, :run_id, batch.sequence, batch.payload
      FROM unnest(CAST(:sequences AS bigint[]), CAST(:payloads AS bytea[]))
           AS batch(sequence, payload)"""

# Until then its conversation waits; afterwards its calls count as denied, or wait for the gateway
# that approves them.
_PENDING = "decide_time IS NULL AND (default_approve OR expire_time > now())"

ACCEPT: TextClause = text(f"""
WITH known AS (
    SELECT {_DISPATCH}, payload_hash FROM gateway.runs
     WHERE project_id = :project_id AND request_id = CAST(:request_id AS text)
), seen AS (
    SELECT id FROM gateway.runs
     WHERE project_id = :project_id AND conversation_id = :conversation_id
       AND state IN ({_ACTIVE}) AND NOT EXISTS (SELECT FROM known)
), active AS (
    -- Locked, so that it either ends before this statement looks, or after it is done.
    SELECT id FROM gateway.runs
     WHERE project_id = :project_id AND conversation_id = :conversation_id
       AND state IN ({_ACTIVE}) AND NOT EXISTS (SELECT FROM known)
       FOR UPDATE
), waiting AS (
    SELECT id FROM gateway.runs
     WHERE project_id = :project_id AND conversation_id = :conversation_id AND state = 'QUEUED'
       -- What waits behind a request for approval waits for its answer.
       AND :on_approval <> 'ANSWER'
     ORDER BY id LIMIT 1
), pending AS (
    SELECT id, expire_time FROM gateway.approvals
     WHERE project_id = :project_id AND conversation_id = :conversation_id AND {_PENDING}
       AND NOT EXISTS (SELECT FROM known)
       FOR UPDATE
), busy AS (
    SELECT id FROM active UNION ALL SELECT id FROM waiting
), open_runs AS (
    SELECT count(*) AS n FROM (
        SELECT FROM gateway.runs WHERE project_id = :project_id AND state IN ({_OPEN})
         LIMIT :open_limit
    ) counted
), allowed AS (
    SELECT FROM open_runs
     WHERE n < :open_limit AND NOT EXISTS (SELECT FROM known)
       AND NOT (:on_busy = 'REJECT' AND EXISTS (SELECT FROM busy))
       AND CASE :on_approval
           WHEN 'ANSWER' THEN EXISTS (SELECT FROM pending WHERE id = :approval_id)
           WHEN 'DENY' THEN true
           ELSE NOT EXISTS (SELECT FROM pending) END
       -- A run that ended while this statement waited for its row may have ended with a request
       -- for approval, which only the next statement sees.
       AND (EXISTS (SELECT FROM active) OR NOT EXISTS (SELECT FROM seen))
), interrupted AS (
    UPDATE gateway.runs SET state = 'CANCELLING'
     WHERE project_id = :project_id AND id IN (SELECT id FROM active)
       AND state = 'RUNNING' AND :on_busy = 'INTERRUPT' AND EXISTS (SELECT FROM allowed)
    RETURNING id
), inserted AS (
    INSERT INTO gateway.runs (
        project_id, id, organization_id, principal, scopes, agent_id, conversation_id, kind,
        request_id, payload, payload_hash, max_steps, parent_run_id,
        state, attempt, owner, lease_until, start_time, deadline_time)
    SELECT :project_id, :id, :organization_id, :principal, CAST(:scopes AS text[]), :agent_id,
           :conversation_id, :kind, CAST(:request_id AS text), :payload, :payload_hash,
           :max_steps, CAST(:parent_run_id AS text),
           CASE WHEN free THEN 'RUNNING' ELSE 'QUEUED' END,
           CASE WHEN free THEN 1 ELSE 0 END,
           CASE WHEN free THEN :owner END,
           CASE WHEN free THEN now() + make_interval(secs => :lease_s) END,
           CASE WHEN free THEN now() END,
           CASE WHEN free THEN now() + make_interval(secs => :run_s) END
      FROM (SELECT NOT EXISTS (SELECT FROM busy) AS free FROM allowed) conversation
        ON CONFLICT DO NOTHING
    RETURNING {_DISPATCH}, payload_hash
), decided AS (
    UPDATE gateway.approvals SET decide_time = now(), answer_run_id = :id
     WHERE project_id = :project_id AND id IN (SELECT id FROM pending)
       AND EXISTS (SELECT FROM inserted)
), found AS (
    SELECT true AS is_new, * FROM inserted UNION ALL SELECT false, * FROM known
)
SELECT open_runs.n AS open_count,
       (SELECT id FROM busy LIMIT 1) AS busy_id,
       (SELECT id FROM interrupted) AS interrupted_id,
       (SELECT id FROM pending LIMIT 1) AS pending_id,
       (SELECT expire_time FROM pending LIMIT 1) AS pending_until,
       found.*
  FROM open_runs LEFT JOIN found ON true
""")

GET = text(f"SELECT {_RUN} FROM gateway.runs WHERE project_id = :project_id AND id = :run_id")


def list_statement(filters: Iterable[str]) -> TextClause:
    """Returns the listing with just these conditions.

    Composed per set of filters, so that each has the plan of its own index instead of
    one plan for all that reads the whole history of a project.

    Args:
        filters: Names out of agent_id, conversation_id, states, before.
    """
    conditions = "".join(f" AND {_FILTERS[name]}" for name in filters)
    return text(
        f"SELECT {_RUN} FROM gateway.runs WHERE project_id = :project_id{conditions}"
        " ORDER BY id DESC LIMIT :limit"
    )


_FILTERS = {
    "agent_id": "agent_id = :agent_id",
    "conversation_id": "conversation_id = :conversation_id",
    "states": "state = ANY(CAST(:states AS text[]))",
    "before": "id < :before",
}

EVENTS = text("""
SELECT run.state, run.last_sequence, event.sequence, event.payload
  FROM gateway.runs run
  LEFT JOIN LATERAL (
      SELECT sequence, payload FROM gateway.run_events
       WHERE project_id = run.project_id AND run_id = run.id AND sequence > :after
       ORDER BY sequence LIMIT :limit
  ) event ON true
 WHERE run.project_id = :project_id AND run.id = :run_id
 ORDER BY event.sequence
""")

LOAD = text(f"""
SELECT {_DISPATCH} FROM gateway.runs
 WHERE project_id = :project_id AND id = :run_id AND owner = :owner AND state IN ({_ACTIVE})
""")

APPEND = text(f"""
WITH fence AS (
    UPDATE gateway.runs SET last_sequence = :last_sequence
     WHERE project_id = :project_id AND id = :run_id AND attempt = :attempt
       AND owner = :owner AND state IN ({_ACTIVE})
    RETURNING id
), written AS (
    {_EVENTS} WHERE EXISTS (SELECT FROM fence)
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

FINISH = text(f"""
WITH ended AS (
    UPDATE gateway.runs
       SET state = :state, stop_reason = :stop_reason, error_reason = CAST(:error_reason AS text),
           error_message = CAST(:error_message AS text),
           error_retryable = CAST(:error_retryable AS boolean), step_count = :step_count,
           prompt_tokens = :prompt_tokens, completion_tokens = :completion_tokens,
           total_tokens = :total_tokens, cached_input_tokens = :cached_input_tokens,
           cache_write_tokens = :cache_write_tokens, reasoning_tokens = :reasoning_tokens,
           usage_estimated = :estimated, last_sequence = :last_sequence,
           taint = CAST(:taint AS text[]), finish_time = now(), owner = NULL, lease_until = NULL
     WHERE project_id = :project_id AND id = :run_id AND attempt = :attempt
       AND owner = :owner AND state IN ({_ENDABLE})
    RETURNING agent_id, conversation_id
), written AS (
    {_EVENTS} WHERE EXISTS (SELECT FROM ended)
), asked AS (
    INSERT INTO gateway.approvals (
        project_id, id, agent_id, conversation_id, run_id, request, expire_time,
        default_approve)
    SELECT :project_id, CAST(:approval_id AS text), agent_id, conversation_id, :run_id,
           CAST(:approval_request AS bytea), CAST(:approval_until AS timestamptz),
           :approval_default
      FROM ended WHERE CAST(:approval_id AS text) IS NOT NULL
        ON CONFLICT DO NOTHING
), reopened AS (
    -- A deadline approves once.
    UPDATE gateway.approvals
       SET decide_time = NULL, answer_run_id = NULL,
           default_approve = default_approve AND expire_time > now()
     WHERE project_id = :project_id AND id = CAST(:reopened_id AS text)
       AND answer_run_id = :run_id AND EXISTS (SELECT FROM ended)
), next AS (
    SELECT run.id FROM gateway.runs run JOIN ended USING (conversation_id)
     WHERE run.project_id = :project_id AND run.state = 'QUEUED' AND run.run_at <= now()
       AND :take_next
       AND CAST(:approval_id AS text) IS NULL AND CAST(:reopened_id AS text) IS NULL
     ORDER BY run.id LIMIT 1 FOR UPDATE OF run SKIP LOCKED
), woken AS (
    UPDATE gateway.runs SET {_TAKEN}
     WHERE project_id = :project_id AND id IN (SELECT id FROM next)
    RETURNING {_DISPATCH}
)
SELECT (SELECT count(*) FROM ended) AS held, woken.* FROM (VALUES (1)) one
  LEFT JOIN woken ON true
""")

# Two steps in one statement: a queued run ends here and now; a running one is marked,
# and whoever holds it does the rest.
CANCEL = text(f"""
WITH target AS (
    SELECT id, state FROM gateway.runs
     WHERE project_id = :project_id AND id = :run_id FOR UPDATE
), changed AS (
    UPDATE gateway.runs run
       SET state = CASE run.state WHEN 'QUEUED' THEN 'CANCELLED' ELSE 'CANCELLING' END,
           stop_reason = CASE run.state WHEN 'QUEUED' THEN 'CANCELLED' ELSE stop_reason END,
           last_sequence = CASE run.state WHEN 'QUEUED' THEN 1 ELSE last_sequence END,
           finish_time = CASE run.state WHEN 'QUEUED' THEN now() END
      FROM target
     WHERE run.project_id = :project_id AND run.id = target.id
       AND run.state IN ({_OPEN})
    RETURNING run.id, run.state
), written AS (
    INSERT INTO gateway.run_events (project_id, run_id, sequence, payload)
    SELECT :project_id, id, 1, :finished FROM changed WHERE state = 'CANCELLED'
)
SELECT count(*) FROM target
""")

_APPROVAL = f"""id, agent_id, conversation_id, run_id, request, expire_time, create_time,
    NOT ({_PENDING}) AS decided, answer_run_id"""

APPROVAL = text(
    f"SELECT {_APPROVAL} FROM gateway.approvals WHERE project_id = :project_id AND id = :id"
)


def approvals_statement(filters: Iterable[str]) -> TextClause:
    """Returns the listing of approvals with just these conditions.

    Args:
        filters: Names out of agent_id, pending, after.
    """
    conditions = "".join(f" AND {_APPROVAL_FILTERS[name]}" for name in filters)
    return text(
        f"SELECT {_APPROVAL} FROM gateway.approvals WHERE project_id = :project_id{conditions}"
        " ORDER BY id LIMIT :limit"
    )


# A run before its parent; a parent that was erased ends the chain.
CHAIN = text("""
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

# The run of a conversation waits for the messages that its agent has sent and that are not
# answered, and thereby for the run of the conversation that each of them is in.
_WAIT = f"""
    SELECT run.id AS run_id, run.agent_id, asked.conversation_id
      FROM gateway.runs run
      JOIN gateway.runs asked
           ON asked.project_id = run.project_id AND asked.parent_run_id = run.id
          AND asked.kind = 'FOREGROUND' AND asked.state IN ({_OPEN})"""
_HOLDS = "WHERE run.project_id = :project_id AND run.state = 'RUNNING'"
WAITS = text(f"""
WITH RECURSIVE waits AS ({_WAIT}
     {_HOLDS} AND run.conversation_id = :conversation_id
     UNION {_WAIT}
      JOIN waits ON run.conversation_id = waits.conversation_id
     {_HOLDS}
)
SELECT run_id, agent_id, conversation_id FROM waits
""")

AWAITED = text(f"""
SELECT id FROM gateway.runs
 WHERE project_id = :project_id AND parent_run_id = :run_id
   AND kind = 'FOREGROUND' AND state IN ({_OPEN})
 ORDER BY id
""")

ASKED_BY = text("""
SELECT organization_id, project_id, principal, scopes, max_steps FROM gateway.runs
 WHERE project_id = :project_id AND id = :run_id
""")

_APPROVAL_FILTERS = {
    "agent_id": "agent_id = :agent_id",
    "pending": _PENDING,
    "after": "id > :after",
}

USAGE = text("""
SELECT count(*) AS run_count, coalesce(sum(step_count), 0) AS step_count,
       coalesce(sum(prompt_tokens), 0) AS prompt_tokens,
       coalesce(sum(completion_tokens), 0) AS completion_tokens,
       coalesce(sum(total_tokens), 0) AS total_tokens,
       coalesce(sum(cached_input_tokens), 0) AS cached_input_tokens,
       coalesce(sum(cache_write_tokens), 0) AS cache_write_tokens,
       coalesce(sum(reasoning_tokens), 0) AS reasoning_tokens,
       coalesce(bool_or(usage_estimated), false) AS usage_estimated
  FROM gateway.runs
 WHERE project_id = :project_id AND finish_time >= :start AND finish_time < :end
   AND (CAST(:agent_id AS text) = '' OR agent_id = :agent_id)
""")

# From here on: the worker's statements, over all tenants and few columns.

RENEW = text(f"""
UPDATE gateway.runs SET lease_until = now() + make_interval(secs => :lease_s)
 WHERE owner = :owner AND state IN ({_ACTIVE}) AND id = ANY(CAST(:run_ids AS text[]))
RETURNING id, attempt, state
""")

CLAIM = text(f"""
WITH expired AS (
    SELECT project_id, id FROM gateway.runs
     WHERE state IN ({_ACTIVE}) AND lease_until < now()
     ORDER BY lease_until LIMIT :limit FOR UPDATE SKIP LOCKED
), ready AS (
    SELECT run.project_id, run.id FROM gateway.runs run
     WHERE run.state = 'QUEUED' AND run.run_at <= now() AND NOT EXISTS (
           SELECT FROM gateway.runs earlier
            WHERE earlier.project_id = run.project_id
              AND earlier.conversation_id = run.conversation_id
              AND (earlier.state IN ({_ACTIVE})
                   OR earlier.state = 'QUEUED' AND earlier.id < run.id))
       AND NOT EXISTS (
           SELECT FROM gateway.approvals approval
            WHERE approval.project_id = run.project_id
              AND approval.conversation_id = run.conversation_id AND {_PENDING})
     ORDER BY run.run_at LIMIT :limit FOR UPDATE SKIP LOCKED
), chosen AS (
    SELECT project_id, id FROM expired UNION ALL SELECT project_id, id FROM ready LIMIT :limit
)
UPDATE gateway.runs run
   SET state = CASE run.state WHEN 'QUEUED' THEN 'RUNNING' ELSE run.state END,
       owner = :owner, attempt = run.attempt + 1,
       lease_until = now() + make_interval(secs => :lease_s),
       start_time = coalesce(run.start_time, now()),
       deadline_time = coalesce(run.deadline_time, now() + make_interval(secs => :run_s))
  FROM chosen
 WHERE run.project_id = chosen.project_id AND run.id = chosen.id
RETURNING run.project_id, run.id
""")

RELEASE = text(f"""
UPDATE gateway.runs SET lease_until = now() - interval '1 second'
 WHERE owner = :owner AND state IN ({_ACTIVE})
RETURNING id
""")

RELEASE_OTHERS = text(f"""
UPDATE gateway.runs SET lease_until = now() - interval '1 second'
 WHERE owner <> :owner AND state IN ({_ACTIVE}) AND lease_until >= now()
RETURNING id
""")

DUE = text("""
SELECT project_id, id, expire_time FROM gateway.approvals
 WHERE default_approve AND decide_time IS NULL AND expire_time <= now()
   AND (expire_time, id) > (CAST(:after_time AS timestamptz), CAST(:after_id AS text))
 ORDER BY expire_time, id LIMIT :limit
""")
