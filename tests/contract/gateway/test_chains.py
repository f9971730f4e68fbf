"""Contract of `ChainStore`; on the real PostgreSQL."""

from __future__ import annotations

import pytest

from contract.gateway.stores import Gateways
from gateway_records import PROJECT, WELL, events, fence_of, new_run
from strata.gateway.runs.domain.chains import ChainLink, Wait
from strata.gateway.runs.domain.runs import RunKind
from strata.gateway.runs.domain.states import RunState
from strata.protocol.errors import NotFoundError, Reason


async def test_a_chain_contains_a_run_and_its_parents(gateways: Gateways) -> None:
    first = new_run("conversation-1")
    second = new_run("conversation-2", parent_run_id=first.id)
    third = new_run("conversation-3", parent_run_id=second.id, kind=RunKind.BACKGROUND)
    for run in (first, second, third):
        accepted = await gateways.first.accept(run)
        assert accepted.run.parent_run_id == run.parent_run_id
    links = [
        ChainLink(third.id, "agent-1", "conversation-3", RunState.RUNNING),
        ChainLink(second.id, "agent-1", "conversation-2", RunState.RUNNING),
        ChainLink(first.id, "agent-1", "conversation-1", RunState.RUNNING),
    ]
    assert await gateways.second.chain(PROJECT, third.id, 10) == links
    assert await gateways.second.chain(PROJECT, third.id, 2) == links[:2]
    assert (await gateways.first.get(PROJECT, second.id)).parent_run_id == first.id


async def test_a_chain_is_read_in_one_statement(gateways: Gateways) -> None:
    parent = ""
    for number in range(6):
        new = new_run(f"conversation-{number}", parent_run_id=parent)
        await gateways.first.accept(new)
        parent = new.id
    statistics = gateways.database.statistics
    before = statistics.statements
    assert len(await gateways.first.chain(PROJECT, parent, 10)) == 6
    assert statistics.statements - before == 1


async def test_a_chain_does_not_include_runs_of_another_project(gateways: Gateways) -> None:
    theirs = new_run(project="project-2")
    await gateways.first.accept(theirs)
    ours = new_run("conversation-2", parent_run_id=theirs.id)
    await gateways.first.accept(ours)
    assert [link.run_id for link in await gateways.first.chain(PROJECT, ours.id, 10)] == [ours.id]
    with pytest.raises(NotFoundError) as caught:
        await gateways.first.chain(PROJECT, theirs.id, 10)
    assert caught.value.reason is Reason.RUN_NOT_FOUND


async def test_run_waits_for_its_unfinished_child_runs(gateways: Gateways) -> None:
    parent = new_run("conversation-0")
    await gateways.first.accept(parent)
    running = new_run("conversation-1", parent_run_id=parent.id)
    queued = new_run("conversation-1", parent_run_id=parent.id)
    background = new_run("conversation-2", parent_run_id=parent.id, kind=RunKind.BACKGROUND)
    over = new_run("conversation-3", parent_run_id=parent.id)
    for run in (running, queued, background):
        await gateways.first.accept(run)
    dispatch = (await gateways.first.accept(over)).dispatch
    assert dispatch is not None
    await gateways.first.finish(fence_of(dispatch, "gateway-1"), WELL, events(1), take_next=False)
    assert await gateways.second.awaited(PROJECT, parent.id) == [running.id, queued.id]
    assert await gateways.second.awaited("project-2", parent.id) == []


async def test_waits_of_a_conversation_are_followed_to_the_runs_that_hold_them(
    gateways: Gateways,
) -> None:
    """Two runs were started separately; the agents wait for each other through other agents."""
    store = gateways.first
    ada, bob = new_run("conversation-a"), new_run("conversation-b")
    for run in (ada, bob):
        await store.accept(run)
    asked = new_run("conversation-c", parent_run_id=bob.id)
    background = new_run("conversation-d", parent_run_id=bob.id, kind=RunKind.BACKGROUND)
    for run in (asked, background):
        await store.accept(run)
    assert await store.waits(PROJECT, "conversation-a") == []
    behind = [Wait(bob.id, "agent-1", "conversation-c")]
    assert await store.waits(PROJECT, "conversation-b") == behind
    # What is queued behind a run waits for it.
    queued = new_run("conversation-a", parent_run_id=asked.id)
    assert (await store.accept(queued)).dispatch is None
    behind.append(Wait(asked.id, "agent-1", "conversation-a"))
    statistics = gateways.database.statistics
    before = statistics.statements
    assert await gateways.second.waits(PROJECT, "conversation-b") == behind
    assert statistics.statements - before == 1
    assert await gateways.second.waits("project-2", "conversation-b") == []


async def test_conversations_that_wait_for_each_other_are_listed_once(gateways: Gateways) -> None:
    store = gateways.first
    ada, bob = new_run("conversation-a"), new_run("conversation-b")
    for run in (ada, bob):
        await store.accept(run)
    for asking, place in ((ada, "conversation-b"), (bob, "conversation-a")):
        await store.accept(new_run(place, parent_run_id=asking.id))
    assert set(await store.waits(PROJECT, "conversation-a")) == {
        Wait(ada.id, "agent-1", "conversation-b"),
        Wait(bob.id, "agent-1", "conversation-a"),
    }


async def test_a_run_does_not_wait_for_finished_child_runs(gateways: Gateways) -> None:
    store = gateways.first
    ada = new_run("conversation-a")
    await store.accept(ada)
    over = new_run("conversation-b", parent_run_id=ada.id)
    dispatch = (await store.accept(over)).dispatch
    assert dispatch is not None
    assert len(await store.waits(PROJECT, "conversation-a")) == 1
    await store.finish(fence_of(dispatch, "gateway-1"), WELL, events(1), take_next=False)
    assert await store.waits(PROJECT, "conversation-a") == []
