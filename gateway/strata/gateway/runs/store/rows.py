"""Columns of runs, and the conversion of their rows."""

from __future__ import annotations

from strata.gateway.runs.domain.principals import Principal
from strata.gateway.runs.domain.runs import Dispatch, Run, RunFailure, RunKind
from strata.gateway.runs.domain.states import RunState
from strata.shared.db import Row
from strata.shared.stop_reasons import StopReason
from strata.shared.usage import COUNTS, FIELDS, Usage

USAGE_COLUMNS = {
    name: "usage_estimated" if name == "estimated" else name for name in (*FIELDS, "total_tokens")
}
"""The columns of token counts, by the name of the value: the fields of `Usage`, and the total."""

RUN_COLUMNS = f"""project_id, id, agent_id, conversation_id, kind, state, stop_reason, error_reason,
    error_message, error_retryable, step_count, attempt, last_sequence, request_id,
    {", ".join(USAGE_COLUMNS.values())}, create_time, start_time, finish_time, taint,
    parent_run_id, run_at, takes_slot"""
# The database computes the remaining time and the age: the clock of a gateway may differ.
DISPATCH_COLUMNS = f"""{RUN_COLUMNS}, organization_id, principal, scopes, payload,
    max_steps, lost_holders, extract(epoch FROM deadline_time - now()) AS remaining_s,
    extract(epoch FROM now() - create_time) AS age_s"""


def run_of(row: Row) -> Run:
    """Returns the run in a row with `RUN_COLUMNS`."""
    failure = None
    if row["error_reason"] is not None:
        failure = RunFailure(row["error_reason"], row["error_message"], row["error_retryable"])
    return Run(
        project_id=row["project_id"],
        id=row["id"],
        agent_id=row["agent_id"],
        conversation_id=row["conversation_id"],
        kind=RunKind(row["kind"]),
        state=RunState(row["state"]),
        stop_reason=stop_reason_of(row["stop_reason"]),
        failure=failure,
        usage=usage_of(row),
        step_count=row["step_count"],
        attempt=row["attempt"],
        last_sequence=row["last_sequence"],
        request_id=row["request_id"] or "",
        create_time=row["create_time"],
        start_time=row["start_time"],
        finish_time=row["finish_time"],
        taint=tuple(row["taint"]),
        parent_run_id=row["parent_run_id"] or "",
        run_at=row["run_at"],
        takes_slot=row["takes_slot"],
    )


def dispatch_of(row: Row) -> Dispatch:
    """Returns the dispatch in a row with `DISPATCH_COLUMNS`."""
    return Dispatch(
        run=run_of(row),
        principal=principal_of(row),
        payload=bytes(row["payload"]),
        max_steps=row["max_steps"],
        remaining_s=float(row["remaining_s"]),
        age_s=float(row["age_s"]),
        lost_holders=row["lost_holders"],
    )


def principal_of(row: Row) -> Principal:
    """Returns who asked for the run."""
    return Principal(
        row["organization_id"], row["project_id"], row["principal"], frozenset(row["scopes"])
    )


def usage_of(row: Row) -> Usage:
    """Returns the usage in a row with `USAGE_COLUMNS`, or with their sums."""
    # Sums are decimal numbers.
    counts = {name: int(row[name]) for name in COUNTS}
    return Usage(**counts, estimated=row["usage_estimated"])


def stop_reason_of(name: str) -> StopReason | None:
    """Returns the stop reason with a name; None for an unknown name."""
    # A gateway of a newer release may have stored a reason that this one lacks.
    return StopReason.__members__.get(name)
