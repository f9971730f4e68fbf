"""Slots that projects share."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polling import settle
from strata.protocol.errors import Reason, ResourceExhaustedError
from strata.shared.context import Caller, RequestContext, use
from strata.shared.fair_slots import FairSlots, share_of, slots_of_short_work
from strata.shared.project_use import ProjectUse


async def test_a_project_at_its_share_leaves_slots_to_others() -> None:
    slots = FairSlots(8, "calls")
    async with AsyncExitStack() as stack:
        for _ in range(6):
            await stack.enter_async_context(slots.slot("noisy"))
        seventh = asyncio.create_task(stack.enter_async_context(slots.slot("noisy")))
        await settle(5)
        assert not seventh.done()
        async with slots.slot("quiet"), slots.slot("quiet"):
            await settle(5)
            assert not seventh.done()
        seventh.cancel()
        await asyncio.gather(seventh, return_exceptions=True)
        assert slots.waiting("noisy") == 0


async def test_free_slots_are_given_in_turn_to_the_project_that_holds_fewest() -> None:
    slots = FairSlots(2, "calls", share=1.0)
    order: list[str] = []

    async def work(project: str) -> None:
        async with slots.slot(project):
            order.append(project)
            await asyncio.sleep(0)

    noisy = [asyncio.create_task(work("noisy")) for _ in range(50)]
    await settle(5)
    quiet = [asyncio.create_task(work(name)) for name in ("one", "two", "one")]
    begun = len(order)
    await asyncio.gather(*noisy, *quiet)
    # Each quiet project is served before the noisy one has had more than its share.
    assert set(order[begun : begun + 6]) >= {"one", "two"}


async def test_too_many_waiters_of_a_project_are_refused_and_the_limit_is_named() -> None:
    slots = FairSlots(1, "calls in the sandbox", queue=2)
    async with slots.slot("noisy"):
        waiting = [asyncio.create_task(slots.slot("noisy").__aenter__()) for _ in range(2)]
        await settle(5)
        with pytest.raises(ResourceExhaustedError, match="calls in the sandbox") as caught:
            await slots.slot("noisy").__aenter__()
        assert caught.value.reason is Reason.OVERLOADED
        assert caught.value.retry_after
        assert caught.value.metadata["queue"] == "2"
        # Another project still has a separate queue.
        other = asyncio.create_task(slots.slot("quiet").__aenter__())
        await settle(5)
        for task in (*waiting, other):
            task.cancel()
        await asyncio.gather(*waiting, other, return_exceptions=True)


async def held_at_once(slots: FairSlots, project: str) -> int:
    """Requests twenty slots, and returns how many a project got concurrently."""

    async def hold() -> None:
        async with slots.slot(project):
            await asyncio.Event().wait()

    asking = [asyncio.create_task(hold()) for _ in range(20)]
    await settle(5)
    result = slots.held(project)
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    return result


async def test_a_project_holds_few_slots_beside_others_and_its_share_when_alone() -> None:
    now = 100.0
    slots = FairSlots(8, "parts", share=1.0, most_beside_others=2, now=lambda: now)

    assert await held_at_once(slots, "noisy") == 8
    async with slots.slot("quiet"):
        assert await held_at_once(slots, "noisy") == 2
    assert await held_at_once(slots, "noisy") == 2, "the other one may come again at any moment"
    assert await held_at_once(slots, "third") == 2
    now += 11
    assert await held_at_once(slots, "noisy") == 8


async def test_a_project_that_wants_slots_of_another_kind_counts_as_active() -> None:
    use = ProjectUse(lambda: 100.0)
    replies = FairSlots(8, "replies", share=1.0, most_beside_others=2, use=use)
    calls = FairSlots(8, "calls", share=1.0, most_beside_others=2, use=use)
    assert await held_at_once(replies, "noisy") == 8
    async with calls.slot("quiet"):
        pass
    assert await held_at_once(replies, "noisy") == 2


async def test_a_slot_is_released_when_its_work_takes_too_long() -> None:
    slots = FairSlots(1, "parts", hold_s=0.001)
    async with slots.slot("noisy"), slots.slot("noisy"), slots.slot("quiet"):
        pass
    assert (slots._used, slots._held, slots._waiting) == (0, {}, {})


async def test_a_busy_project_yields_to_an_active_quiet_one_for_a_limited_time() -> None:
    now = 100.0
    slots = FairSlots(8, "parts", share=1.0, give_way_s=0.01, now=lambda: now)
    async with slots.slot("noisy"):
        now += 2
    async with slots.slot("quiet"):
        asking = asyncio.create_task(slots.slot("noisy").acquire())
        await settle(5)
        assert slots.held("noisy") == 0
    await asking
    async with slots.slot("quiet"):
        asking = asyncio.create_task(slots.slot("noisy").acquire())
        await settle(5)
        assert slots.held("noisy") == 1, "only the first slot"
        now += 0.01
        await asyncio.wait_for(asking, timeout=10)
    assert slots.held("noisy") == 2


async def test_short_work_of_a_busy_project_yields_to_a_quiet_one_for_a_limited_time() -> None:
    slots = slots_of_short_work(64, "calls")
    for _ in range(2000):
        async with slots.slot("noisy"):
            pass
    async with slots.slot("quiet"):
        assert not slots.acquire_now("noisy")
        await asyncio.wait_for(slots.acquire("noisy"), timeout=10)


async def test_a_busy_project_gives_way_to_a_quiet_one_in_slots_of_other_kinds() -> None:
    now = 100.0
    use = ProjectUse(lambda: now)
    searches, turns = (
        FairSlots(8, kind, share=1.0, give_way_s=0.01, use=use, now=lambda: now)
        for kind in ("searches", "turns")
    )
    async with searches.slot("noisy"):
        now += 2
    async with turns.slot("quiet"):
        asking = asyncio.create_task(searches.slot("noisy").acquire())
        await settle(5)
        assert searches.held("noisy") == 0
    # It continues as soon as the quiet project has ended its work: the clock stands still.
    await asyncio.wait_for(asking, timeout=10)
    async with turns.slot("quiet"):
        asking = asyncio.create_task(searches.slot("noisy").acquire())
        await settle(5)
        assert searches.held("noisy") == 1
        now += 0.01
        # It also continues while the quiet project works on.
        await asyncio.wait_for(asking, timeout=10)
    assert not use.gives_way("noisy")


async def test_projects_with_similar_use_do_not_yield() -> None:
    now = 100.0
    slots = FairSlots(8, "parts", share=1.0, give_way_s=10, now=lambda: now)
    for _ in range(100):
        for project, seconds in (("one", 0.02), ("two", 0.02)):
            async with slots.slot(project):
                now += seconds
    async with slots.slot("two"):
        assert slots.acquire_now("one")


async def test_old_use_of_a_project_does_not_count() -> None:
    now = 100.0
    slots = FairSlots(8, "parts", share=1.0, give_way_s=10, now=lambda: now)
    async with slots.slot("noisy"):
        now += 100
    now += 2
    async with slots.slot("quiet"):
        assert not slots.acquire_now("noisy")
    now += 8
    async with slots.slot("quiet"):
        assert slots.acquire_now("noisy")


async def test_a_slot_taken_without_waiting_is_counted() -> None:
    slots = FairSlots(2, "parts", share=1.0)
    first, second = slots.slot("noisy"), slots.slot("noisy")
    await first.acquire()
    await second.acquire()
    third, fourth = slots.slot("noisy"), slots.slot("noisy")
    third.take()
    first.release()
    assert not fourth.acquire_now()
    second.release()
    assert fourth.acquire_now()


async def test_slots_are_counted_for_the_project_of_the_call() -> None:
    slots = FairSlots(2, "calls")
    with use(RequestContext(caller=Caller("org", "project-7", "key"))):
        async with slots.slot():
            assert slots.held("project-7") == 1
    async with slots.slot():
        assert slots.held("") == 1
    assert (slots._held, slots._waiting, slots._served) == ({}, {}, {})


@given(st.integers(1, 1000))
def test_a_share_is_at_least_one_and_less_than_all_of_many_slots(slots: int) -> None:
    assert 1 <= share_of(slots) <= slots
    if slots >= 4:
        assert share_of(slots) < slots


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 6),
    share=st.sampled_from([0.25, 0.5, 0.75, 1.0]),
    give_way_s=st.sampled_from([None, 0.0005]),
    plan=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.booleans()), max_size=40),
)
async def test_held_slots_never_exceed_the_limit_and_none_is_lost(
    count: int, share: float, give_way_s: float | None, plan: list[tuple[str, int, bool]]
) -> None:
    slots = FairSlots(count, "calls", share=share, give_way_s=give_way_s)
    now: Counter[str] = Counter()

    async def work(project: str, rounds: int) -> None:
        async with slots.slot(project):
            now[project] += 1
            assert now.total() <= count
            assert now[project] <= share_of(count, share)
            try:
                for _ in range(rounds):
                    await asyncio.sleep(0)
            finally:
                now[project] -= 1

    tasks = [(asyncio.create_task(work(p, rounds)), gives_up) for p, rounds, gives_up in plan]
    await asyncio.sleep(0)
    for task, gives_up in tasks:
        if gives_up:
            task.cancel()
    ends = await asyncio.gather(*(task for task, _ in tasks), return_exceptions=True)
    for end, (_, gives_up) in zip(ends, tasks, strict=True):
        assert end is None or (gives_up and isinstance(end, asyncio.CancelledError)), end
    assert (slots._used, slots._held, slots._waiting) == (0, {}, {})
