"""Approvals by default at a deadline, and answers whose runs fail; on the real PostgreSQL."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from contract.gateway.stores import Gateways, refused
from gateway_records import PROJECT, WELL, answering, asking, events, fence_of, new_run, taken
from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.common.v1 import message_pb2
from strata.gateway.runs.dispatch.default_answers import DefaultAnswers
from strata.gateway.runs.domain.approvals import ApprovalFilter, OnApproval
from strata.gateway.runs.domain.runs import Accepted, Dispatch, NewRun, RunEnding, RunFailure
from strata.gateway.runs.domain.states import RunState
from strata.gateway.runs.store.runs import PostgresRunStore
from strata.protocol.errors import FailedPreconditionError, Reason, ResourceExhaustedError
from strata.shared.stop_reasons import StopReason

REQUEST = message_pb2.ApprovalRequestPart(
    tool_calls=[
        message_pb2.ToolCallPart(tool_call_id=call_id, name="pay") for call_id in ("c1", "c2")
    ],
    bindings=[message_pb2.ApprovalBinding(tool_call_id="c1", arguments_hash="h")],
)
FAILED = replace(
    WELL, stop_reason=StopReason.ERROR, failure=RunFailure("INTERNAL", "x", retryable=True)
)


def lenient(seconds: float) -> tuple[str, RunEnding]:
    """Returns a request that is approved at its deadline, and the end of a run with it."""
    approval_id, ending = asking(seconds)
    assert ending.asked is not None
    request = message_pb2.ApprovalRequestPart(approval_id=approval_id)
    request.MergeFrom(REQUEST)
    asked = replace(ending.asked, request=request.SerializeToString(), default_approve=True)
    return approval_id, replace(ending, asked=asked)


async def asks(gateways: Gateways, seconds: float, conversation: str = "conversation-1") -> str:
    fence = await taken(gateways.first, "gateway-1", conversation)
    approval_id, ending = lenient(seconds)
    await gateways.first.finish(fence, ending, events(1), take_next=True)
    return approval_id


def giving(store: PostgresRunStore) -> tuple[DefaultAnswers, list[Dispatch]]:
    started: list[Dispatch] = []

    async def accept(new: NewRun) -> Accepted:
        accepted = await store.accept(new)
        if accepted.dispatch is not None:
            started.append(accepted.dispatch)
        return accepted

    return DefaultAnswers(store, accept), started


async def test_before_its_deadline_nothing_is_approved(gateways: Gateways) -> None:
    approval_id = await asks(gateways, 600)
    defaults, started = giving(gateways.first)
    assert await defaults.answer_due() == 0
    assert started == []
    assert not (await gateways.first.approval(PROJECT, approval_id)).decided


async def test_one_of_many_gateways_gives_the_default_answer(gateways: Gateways) -> None:
    approval_id = await asks(gateways, -1)
    error = await refused(gateways, new_run())
    assert error.reason is Reason.APPROVAL_PENDING
    givers = [giving(store) for store in (gateways.first, gateways.second) * 3]
    answered = await asyncio.gather(*(defaults.answer_due() for defaults, _ in givers))
    assert sum(answered) == 1
    [dispatch] = [dispatch_ for _, started in givers for dispatch_ in started]
    assert dispatch.run.state is RunState.RUNNING
    # The run that answers acts for the same principal as the run that asked.
    assert dispatch.principal == new_run().principal
    answer = turn_pb.ExecuteRunRequest.FromString(dispatch.payload).approval
    assert (answer.approval_id, answer.by_default) == (approval_id, True)
    assert [(d.tool_call_id, d.approve, d.arguments_hash) for d in answer.decisions] == [
        ("c1", True, "h"),
        ("c2", True, ""),
    ]
    approval = await gateways.first.approval(PROJECT, approval_id)
    assert (approval.decided, approval.answer_run_id) == (True, dispatch.run.id)
    assert await givers[0][0].answer_due() == 0


async def test_the_default_decision_is_not_made_after_an_answer_or_a_message(
    gateways: Gateways,
) -> None:
    first = await asks(gateways, -1)
    second = await asks(gateways, -1, "conversation-2")
    assert (await gateways.first.accept(answering(first))).dispatch is not None
    denies = new_run("conversation-2", on_approval=OnApproval.DENY)
    assert (await gateways.first.accept(denies)).dispatch is not None
    defaults, started = giving(gateways.second)
    assert await defaults.answer_due() == 0
    assert started == []
    assert (await gateways.first.approval(PROJECT, second)).answer_run_id == denies.id


async def test_a_request_that_cannot_be_answered_does_not_block_others(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.gateway.runs.dispatch.default_answers._BATCH", 1)
    stuck = await asks(gateways, -9)
    other = await asks(gateways, -5, "conversation-2")
    store = gateways.first

    class Refusing(PostgresRunStore):
        async def accept(self, new: object) -> object:  # type: ignore[override]
            if new.approval_id == stuck:  # type: ignore[attr-defined]
                raise FailedPreconditionError("no", reason=Reason.APPROVAL_DECIDED)
            return await store.accept(new)  # type: ignore[arg-type]

    refusing = Refusing(gateways.database, gateways.worker, store._terms)
    defaults, started = giving(refusing)
    assert await defaults.answer_due() == 1
    answer = turn_pb.ExecuteRunRequest.FromString(started[0].payload).approval
    assert answer.approval_id == other


async def test_answers_are_accepted_if_runs_that_wait_for_them_use_the_quota_up(
    gateways: Gateways,
) -> None:
    fence = await taken(gateways.first, "gateway-1")
    later = datetime.now(UTC) + timedelta(hours=1)
    waiting = [await gateways.first.accept(new_run(run_at=later)) for _ in range(20)]
    approval_id, ending = lenient(-1)
    await gateways.first.finish(fence, ending, events(1), take_next=True)
    connection = await asyncpg.connect(gateways.urls.admin_url)
    await connection.execute("UPDATE gateway.runs SET run_at = now() WHERE state = 'QUEUED'")
    await connection.close()
    assert await gateways.second.claim(10) == []
    with pytest.raises(ResourceExhaustedError):
        await gateways.first.accept(new_run("conversation-2"))

    defaults, started = giving(gateways.first)
    assert await defaults.answer_due() == 1

    error = await refused(gateways, answering(approval_id))
    assert error.reason is Reason.APPROVAL_DECIDED
    following = await gateways.first.finish(
        fence_of(started[0], "gateway-1"), WELL, events(1), take_next=True
    )
    assert following is not None
    assert following.run.id in {accepted.run.id for accepted in waiting}


async def test_a_request_that_cannot_be_read_does_not_block_others(gateways: Gateways) -> None:
    fence = await taken(gateways.first, "gateway-1")
    unreadable, ending = asking(-9)
    assert ending.asked is not None
    asked = replace(ending.asked, request=b"\xff", default_approve=True)
    await gateways.first.finish(fence, replace(ending, asked=asked), events(1), take_next=True)
    other = await asks(gateways, -1, "conversation-2")
    defaults, _ = giving(gateways.first)
    assert await defaults.answer_due() == 1
    assert (await gateways.first.approval(PROJECT, other)).decided
    assert not (await gateways.first.approval(PROJECT, unreadable)).decided


async def test_a_failed_answer_reopens_the_request(gateways: Gateways) -> None:
    fence = await taken(gateways.first, "gateway-1")
    queued = await gateways.first.accept(new_run())
    approval_id, ending = asking()
    await gateways.first.finish(fence, ending, events(1), take_next=True)
    accepted = await gateways.first.accept(answering(approval_id))
    assert accepted.dispatch is not None
    fence = fence_of(accepted.dispatch, "gateway-1")
    reopens = replace(FAILED, reopens=approval_id)
    assert await gateways.first.finish(fence, reopens, events(1), take_next=True) is None
    [listed] = await gateways.first.approvals(PROJECT, ApprovalFilter(), after=None, limit=10)
    assert (listed.id, listed.decided, listed.answer_run_id) == (approval_id, False, "")
    assert await gateways.second.claim(10) == []
    again = await gateways.first.accept(answering(approval_id))
    assert again.dispatch is not None
    fence = fence_of(again.dispatch, "gateway-1")
    following = await gateways.first.finish(fence, WELL, events(1), take_next=True)
    assert following is not None
    assert following.run.id == queued.run.id


async def test_only_the_run_with_the_answer_opens_a_request_again(gateways: Gateways) -> None:
    fence = await taken(gateways.first, "gateway-1")
    approval_id, ending = asking()
    await gateways.first.finish(fence, ending, events(1), take_next=True)
    accepted = await gateways.first.accept(answering(approval_id))
    assert accepted.dispatch is not None
    other = await taken(gateways.first, "gateway-1", "conversation-2")
    reopens = replace(FAILED, reopens=approval_id)
    await gateways.first.finish(other, reopens, events(1), take_next=False)
    assert (await gateways.first.approval(PROJECT, approval_id)).decided


async def test_a_deadline_approves_once(gateways: Gateways) -> None:
    approval_id = await asks(gateways, -1)
    defaults, started = giving(gateways.first)
    assert await defaults.answer_due() == 1
    fence = fence_of(started[0], "gateway-1")
    reopens = replace(FAILED, reopens=approval_id)
    await gateways.first.finish(fence, reopens, events(1), take_next=True)
    assert await defaults.answer_due() == 0
    # After its deadline the approval counts as denied and blocks no messages.
    approval = await gateways.first.approval(PROJECT, approval_id)
    assert (approval.decided, approval.answer_run_id) == (True, "")
    assert (await gateways.first.accept(new_run())).dispatch is not None


async def test_a_deadline_does_not_approve_again_after_its_queued_answer_was_cancelled(
    gateways: Gateways,
) -> None:
    approval_id = await asks(gateways, -1)
    answer = await gateways.first.accept(answering(approval_id), may_start=False)
    await gateways.first.cancel(PROJECT, answer.run.id, b"")
    defaults, _ = giving(gateways.first)
    assert await defaults.answer_due() == 0
    approval = await gateways.first.approval(PROJECT, approval_id)
    assert (approval.decided, approval.answer_run_id) == (True, "")
    assert (await gateways.first.accept(new_run())).dispatch is not None
