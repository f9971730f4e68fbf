"""What every implementation of `ChainStore` has to do; run on the real PostgreSQL."""

from __future__ import annotations

import pytest

from contract.gateway.stores import Gateways
from contract.gateway.test_run_store import PROJECT, WELL, events, fence_of, new_run
from strata.gateway.runs.chains import Link
from strata.gateway.runs.domain import RunKind
from strata.gateway.runs.states import RunState
from strata.shared.errors import NotFoundError, Reason


async def test_a_chain_goes_from_a_run_to_its_parents(gateways: Gateways) -> None:
    first = new_run("conversation-1")
    second = new_run("conversation-2", parent_run_id=first.id)
    third = new_run("conversation-3", parent_run_id=second.id, kind=RunKind.BACKGROUND)
    for each in (first, second, third):
        accepted = await gateways.first.accept(each)
        assert accepted.run.parent_run_id == each.parent_run_id
    links = [
        Link(third.id, "agent-1", "conversation-3", RunState.RUNNING, awaited=False),
        Link(second.id, "agent-1", "conversation-2", RunState.RUNNING, awaited=True),
        # What a client sends is waited for by no run.
        Link(first.id, "agent-1", "conversation-1", RunState.RUNNING, awaited=False),
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


async def test_a_chain_is_of_one_project(gateways: Gateways) -> None:
    theirs = new_run(project="project-2")
    await gateways.first.accept(theirs)
    ours = new_run("conversation-2", parent_run_id=theirs.id)
    await gateways.first.accept(ours)
    assert [link.run_id for link in await gateways.first.chain(PROJECT, ours.id, 10)] == [ours.id]
    with pytest.raises(NotFoundError) as caught:
        await gateways.first.chain(PROJECT, theirs.id, 10)
    assert caught.value.reason is Reason.RUN_NOT_FOUND


async def test_a_run_waits_for_what_it_has_asked_and_what_is_not_over(gateways: Gateways) -> None:
    parent = new_run("conversation-0")
    await gateways.first.accept(parent)
    running = new_run("conversation-1", parent_run_id=parent.id)
    queued = new_run("conversation-1", parent_run_id=parent.id)
    told = new_run("conversation-2", parent_run_id=parent.id, kind=RunKind.BACKGROUND)
    over = new_run("conversation-3", parent_run_id=parent.id)
    for each in (running, queued, told):
        await gateways.first.accept(each)
    dispatch = (await gateways.first.accept(over)).dispatch
    assert dispatch is not None
    await gateways.first.finish(fence_of(dispatch, "gateway-1"), WELL, events(1), take_next=False)
    assert await gateways.second.awaited(PROJECT, parent.id) == [running.id, queued.id]
    assert await gateways.second.awaited("project-2", parent.id) == []
