"""Pending approvals and the messages that a conversation accepts; on the real PostgreSQL."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import asyncpg
import pytest

from contract.gateway.stores import Gateways, refused
from gateway_records import PROJECT, WELL, answering, asking, events, fence_of, new_run, taken
from strata.gateway.runs.domain.approvals import ApprovalFilter, OnApproval
from strata.gateway.runs.domain.runs import OnBusy
from strata.gateway.runs.domain.states import RunState
from strata.protocol.errors import FailedPreconditionError, NotFoundError, Reason
from strata.shared.ids import new_id
from strata.shared.stop_reasons import StopReason

ALL = ApprovalFilter()


async def test_a_conversation_with_a_pending_approval_accepts_only_the_answer(
    gateways: Gateways,
) -> None:
    fence = await taken(gateways.first, "gateway-1")
    queued = await gateways.first.accept(new_run())
    assert queued.run.state is RunState.QUEUED
    approval_id, ending = asking()
    assert await gateways.first.finish(fence, ending, events(1), take_next=True) is None
    assert await gateways.second.claim(10) == []

    error = await refused(gateways, new_run())
    assert error.reason is Reason.APPROVAL_PENDING
    assert error.metadata["approval_id"] == approval_id
    with pytest.raises(NotFoundError):
        await gateways.first.accept(answering(new_id("approval")))
    [listed] = await gateways.first.approvals(PROJECT, ALL, after=None, limit=10)
    assert (listed.id, listed.run_id, listed.decided) == (approval_id, fence.run_id, False)
    assert await gateways.first.approvals("project-2", ALL, after=None, limit=10) == []

    new = answering(approval_id, request_id="once")
    accepted = await gateways.first.accept(new)
    assert accepted.dispatch is not None
    again = await gateways.second.accept(replace(new, id=new_id("run")))
    assert (again.run.id, again.dispatch) == (new.id, None)
    error = await refused(gateways, answering(approval_id))
    assert error.reason is Reason.APPROVAL_DECIDED
    assert error.metadata["answer_run_id"] == new.id
    assert await gateways.first.approvals(PROJECT, ALL, after=None, limit=10) == []
    with_decided = ApprovalFilter(include_decided=True)
    [listed] = await gateways.first.approvals(PROJECT, with_decided, after=None, limit=10)
    assert (listed.decided, listed.answer_run_id) == (True, new.id)

    fence = fence_of(accepted.dispatch, "gateway-1")
    following = await gateways.first.finish(fence, WELL, events(1), take_next=True)
    assert following is not None
    assert following.run.id == queued.run.id


async def test_after_the_deadline_messages_are_accepted_and_answers_are_not(
    gateways: Gateways,
) -> None:
    fence = await taken(gateways.first, "gateway-1")
    queued = await gateways.first.accept(new_run())
    approval_id, ending = asking(seconds=-1)
    await gateways.first.finish(fence, ending, events(1), take_next=True)
    error = await refused(gateways, answering(approval_id))
    assert error.reason is Reason.APPROVAL_EXPIRED
    [listed] = await gateways.first.approvals(
        PROJECT, ApprovalFilter(include_decided=True), after=None, limit=10
    )
    assert (listed.decided, listed.answer_run_id) == (True, "")
    assert await gateways.second.claim(10) == [(PROJECT, queued.run.id)]


async def test_message_may_deny_a_pending_approval(gateways: Gateways) -> None:
    fence = await taken(gateways.first, "gateway-1")
    approval_id, ending = asking()
    await gateways.first.finish(fence, ending, events(1), take_next=True)
    new = new_run(on_approval=OnApproval.DENY)
    assert (await gateways.first.accept(new)).dispatch is not None
    approval = await gateways.first.approval(PROJECT, approval_id)
    assert (approval.decided, approval.answer_run_id) == (True, new.id)


@pytest.mark.parametrize("take_next", [True, False])
@pytest.mark.parametrize("is_reopened", [False, True])
async def test_queued_message_denies_the_approval_that_is_open_when_its_run_starts(
    gateways: Gateways, is_reopened: bool, take_next: bool
) -> None:
    fence = await taken(gateways.first, "gateway-1")
    approval_id, ending = asking()
    if is_reopened:
        await gateways.first.finish(fence, ending, events(1), take_next=True)
        answer = await gateways.first.accept(answering(approval_id))
        assert answer.dispatch is not None
        fence = fence_of(answer.dispatch, "gateway-1")
        ending = replace(WELL, stop_reason=StopReason.CANCELLED, reopens=approval_id)
    queued = await gateways.first.accept(
        new_run(on_approval=OnApproval.DENY, on_busy=OnBusy.INTERRUPT)
    )
    later = await gateways.first.accept(new_run())

    following = await gateways.first.finish(fence, ending, events(1), take_next=take_next)

    if take_next:
        assert following is not None
        assert following.run.id == queued.run.id
    else:
        assert following is None
        assert not (await gateways.first.approval(PROJECT, approval_id)).decided
        assert await gateways.second.claim(10) == [(PROJECT, queued.run.id)]
    approval = await gateways.first.approval(PROJECT, approval_id)
    assert (approval.decided, approval.answer_run_id) == (True, queued.run.id)
    assert await gateways.second.claim(10) == []
    assert (await gateways.first.get(PROJECT, later.run.id)).state is RunState.QUEUED


async def test_queued_message_denies_nothing_before_its_run_starts(gateways: Gateways) -> None:
    fence = await taken(gateways.first, "gateway-1")
    waiting = await gateways.first.accept(new_run())
    denying = await gateways.first.accept(new_run(on_approval=OnApproval.DENY))
    approval_id, ending = asking()
    assert await gateways.first.finish(fence, ending, events(1), take_next=True) is None
    assert await gateways.second.claim(10) == []
    assert not (await gateways.first.approval(PROJECT, approval_id)).decided

    await gateways.first.cancel(PROJECT, waiting.run.id, b"")

    assert await gateways.second.claim(10) == [(PROJECT, denying.run.id)]
    approval = await gateways.first.approval(PROJECT, approval_id)
    assert (approval.decided, approval.answer_run_id) == (True, denying.run.id)


async def test_of_an_answer_and_a_queued_denial_one_is_taken(gateways: Gateways) -> None:
    for number in range(8):
        conversation = f"conversation-{number}"
        fence = await taken(gateways.first, "gateway-1", conversation)
        queued = await gateways.first.accept(new_run(conversation, on_approval=OnApproval.DENY))
        approval_id, ending = asking()
        await gateways.first.finish(fence, ending, events(1), take_next=False)

        answer = replace(answering(approval_id), conversation_id=conversation)
        claimed, answered = await asyncio.gather(
            gateways.second.claim(10), gateways.first.accept(answer), return_exceptions=True
        )

        approval = await gateways.first.approval(PROJECT, approval_id)
        states = {
            run_id: (await gateways.first.get(PROJECT, run_id)).state
            for run_id in (queued.run.id, approval.answer_run_id)
        }
        assert list(states.values()).count(RunState.RUNNING) == 1
        assert states[approval.answer_run_id] is RunState.RUNNING
        is_denied = approval.answer_run_id == queued.run.id
        assert is_denied == isinstance(answered, FailedPreconditionError)
        assert is_denied == (claimed == [(PROJECT, queued.run.id)])


async def test_queued_denial_does_not_wait_for_an_approval_that_is_being_answered(
    gateways: Gateways,
) -> None:
    fence = await taken(gateways.first, "gateway-1")
    queued = await gateways.first.accept(new_run(on_approval=OnApproval.DENY))
    other = await gateways.first.accept(new_run("another"), may_start=False)
    _, ending = asking()
    await gateways.first.finish(fence, ending, events(1), take_next=False)
    admin = await asyncpg.connect(gateways.urls.admin_url)
    try:
        async with admin.transaction():
            # As the statement that accepts an answer does before it starts a run.
            await admin.execute("SELECT FROM gateway.approvals FOR UPDATE")
            async with asyncio.timeout(10):
                claimed = await gateways.second.claim(10)
            assert claimed == [(PROJECT, other.run.id)]
    finally:
        await admin.close()
    assert await gateways.second.claim(10) == [(PROJECT, queued.run.id)]


async def test_one_of_several_answers_is_accepted(gateways: Gateways) -> None:
    fence = await taken(gateways.first, "gateway-1")
    approval_id, ending = asking()
    await gateways.first.finish(fence, ending, events(1), take_next=True)
    stores = (gateways.first, gateways.second) * 4
    answers = await asyncio.gather(
        *(store.accept(answering(approval_id)) for store in stores), return_exceptions=True
    )
    assert sum(not isinstance(answer, BaseException) for answer in answers) == 1
    reasons = {
        getattr(answer, "reason", None) for answer in answers if isinstance(answer, Exception)
    }
    assert reasons == {Reason.APPROVAL_DECIDED}


async def test_concurrent_repetitions_of_an_answer_start_one_run(gateways: Gateways) -> None:
    fence = await taken(gateways.first, "gateway-1")
    approval_id, ending = asking()
    await gateways.first.finish(fence, ending, events(1), take_next=True)
    new = answering(approval_id, request_id="twice")
    admin = await asyncpg.connect(gateways.urls.admin_url)
    try:
        async with admin.transaction():
            # Both statements read before either is committed.
            await admin.execute("SELECT FROM gateway.approvals FOR UPDATE")
            answers = [
                asyncio.create_task(store.accept(replace(new, id=new_id("run"))))
                for store in (gateways.first, gateways.second)
            ]
            waiting = (
                "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
            )
            waiting += " OR locktype = 'tuple' AND NOT granted"
            while await admin.fetchval(waiting) < len(answers):
                await asyncio.sleep(0.01)
    finally:
        await admin.close()
    first, second = [await answer for answer in answers]
    assert first.run.id == second.run.id


async def test_no_message_is_accepted_while_a_run_ends_with_an_approval_request(
    gateways: Gateways,
) -> None:
    for number in range(12):
        conversation = f"conversation-{number}"
        fence = await taken(gateways.first, "gateway-1", conversation)
        approval_id, ending = asking()
        _, accepted = await asyncio.gather(
            gateways.first.finish(fence, ending, events(1), take_next=True),
            gateways.second.accept(new_run(conversation)),
            return_exceptions=True,
        )
        approval = await gateways.first.approval(PROJECT, approval_id)
        assert not approval.decided
        if isinstance(accepted, BaseException):
            assert isinstance(accepted, FailedPreconditionError)
            assert accepted.reason is Reason.APPROVAL_PENDING
        else:
            assert accepted.run.state is RunState.QUEUED


async def test_pages_of_approvals_are_in_the_order_of_time(gateways: Gateways) -> None:
    made = []
    for number in range(3):
        fence = await taken(gateways.first, "gateway-1", f"conversation-{number}")
        approval_id, ending = asking()
        made.append(approval_id)
        await gateways.first.finish(fence, ending, events(1), take_next=True)
    of_agent = ApprovalFilter("agent-1")
    first = await gateways.first.approvals(PROJECT, of_agent, after=None, limit=2)
    rest = await gateways.first.approvals(PROJECT, of_agent, after=first[-1].id, limit=2)
    assert [approval.id for approval in (*first, *rest)] == made
    assert await gateways.first.approvals(PROJECT, ApprovalFilter("x"), after=None, limit=2) == []
    of_conversation = ApprovalFilter(conversation_id="conversation-1")
    [approval] = await gateways.first.approvals(PROJECT, of_conversation, after=None, limit=2)
    assert approval.id == made[1]


async def test_queued_answer_starts_before_the_messages_that_wait_for_it(
    gateways: Gateways,
) -> None:
    fence = await taken(gateways.first, "gateway-1")
    message = await gateways.first.accept(new_run())
    approval_id, ending = asking()
    await gateways.first.finish(fence, ending, events(1), take_next=True)

    answer = await gateways.first.accept(answering(approval_id), may_start=False)

    assert answer.run.state is RunState.QUEUED
    assert await gateways.second.claim(10) == [(PROJECT, answer.run.id)]
    dispatch = await gateways.second.load(PROJECT, answer.run.id)
    following = await gateways.second.finish(
        fence_of(dispatch, "gateway-2"), WELL, events(1), take_next=True
    )
    assert following is not None
    assert following.run.id == message.run.id


async def test_cancelled_answer_that_was_queued_opens_its_request_again(
    gateways: Gateways,
) -> None:
    fence = await taken(gateways.first, "gateway-1")
    approval_id, ending = asking()
    await gateways.first.finish(fence, ending, events(1), take_next=True)
    answer = await gateways.first.accept(answering(approval_id), may_start=False)
    assert (await gateways.first.approval(PROJECT, approval_id)).decided

    await gateways.first.cancel(PROJECT, answer.run.id, b"")

    approval = await gateways.first.approval(PROJECT, approval_id)
    assert (approval.decided, approval.answer_run_id) == (False, "")
    assert (await gateways.first.accept(answering(approval_id))).dispatch is not None


async def test_cancelled_message_that_was_queued_leaves_its_denial(gateways: Gateways) -> None:
    fence = await taken(gateways.first, "gateway-1")
    approval_id, ending = asking()
    await gateways.first.finish(fence, ending, events(1), take_next=True)
    denying = new_run(on_approval=OnApproval.DENY)
    denial = await gateways.first.accept(denying, may_start=False)

    await gateways.first.cancel(PROJECT, denial.run.id, b"")

    approval = await gateways.first.approval(PROJECT, approval_id)
    assert (approval.decided, approval.answer_run_id) == (True, denial.run.id)
