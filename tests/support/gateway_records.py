"""New runs, approvals, schedules and webhooks for the stores of the gateway."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from strata.gateway.runs.domain.approvals import AskedApproval, OnApproval
from strata.gateway.runs.domain.principals import Principal
from strata.gateway.runs.domain.runs import (
    Dispatch,
    Fence,
    NewRun,
    RunEnding,
    RunKind,
    StoredEvent,
)
from strata.gateway.runs.store.runs import PostgresRunStore
from strata.gateway.schedules.domain import (
    NewSchedule,
    OnOverlap,
    RunPlan,
    ScheduleTerms,
)
from strata.gateway.schedules.timing import Timing
from strata.gateway.webhooks.domain import NewWebhook
from strata.shared.ids import new_id
from strata.shared.stop_reasons import StopReason
from strata.shared.usage import Usage

PROJECT = "project-1"
WELL = RunEnding(StopReason.END_TURN, None, Usage(10, 5, 4, 3, 2), 2)


def new_run(
    conversation: str = "conversation-1", project: str = PROJECT, **changes: object
) -> NewRun:
    base = NewRun(
        id=new_id("run"),
        principal=Principal("organization-1", project, "key-1", frozenset({"run", "read"})),
        agent_id="agent-1",
        conversation_id=conversation,
        kind=RunKind.FOREGROUND,
        payload=b"hello",
        payload_hash=b"hash-1",
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def fence_of(dispatch: Dispatch, owner: str) -> Fence:
    run = dispatch.run
    return Fence(run.project_id, run.id, run.attempt, owner)


def events(*sequences: int) -> list[StoredEvent]:
    return [StoredEvent(sequence, f"event {sequence}".encode()) for sequence in sequences]


async def taken(store: PostgresRunStore, owner: str, conversation: str = "conversation-1") -> Fence:
    accepted = await store.accept(new_run(conversation))
    assert accepted.dispatch is not None
    return fence_of(accepted.dispatch, owner)


def asking(seconds: float = 600) -> tuple[str, RunEnding]:
    """Returns a new approval request id and the end of a run with that request."""
    asked = AskedApproval(new_id("approval"), b"what", seconds)
    return asked.id, replace(WELL, stop_reason=StopReason.REQUIRES_APPROVAL, asked=asked)


def answering(approval_id: str, request_id: str | None = None) -> NewRun:
    return new_run(on_approval=OnApproval.ANSWER, approval_id=approval_id, request_id=request_id)


TERMS = ScheduleTerms(per_project=3)


def new_schedule(name: str = "morning", **changes: Any) -> NewSchedule:
    run = new_run()
    plan = RunPlan(
        run.principal,
        run.agent_id,
        run.conversation_id,
        run.payload,
        run.payload_hash,
        0,
        changes.pop("on_approval", OnApproval.REJECT),
        changes.pop("on_overlap", OnOverlap.SKIP),
    )
    # Daily, and the last time was some minutes ago, so no tick is due during a test.
    last = datetime.now(UTC) - timedelta(minutes=2)
    timing = changes.pop("timing", Timing(f"{last.minute} {last.hour} * * *"))
    return NewSchedule(new_id("schedule"), name, plan, timing, changes.pop("request_id", None))


def new_webhook() -> NewWebhook:
    return NewWebhook(new_id("webhook"), "https://hook.example/", (), "", "", b"s", None, b"h")
