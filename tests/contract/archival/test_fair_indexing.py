"""Projects take turns in indexing."""

from __future__ import annotations

from collections.abc import Sequence

from archival_stores import Stores
from callers import as_project
from strata.archival.domain.chunks import SetState
from strata.shared import context
from strata.shared.ids import new_id


async def passages_of(stores: Stores, project: str, count: int) -> list[str]:
    with context.use(as_project(project)):
        texts = [f"Note {number} of {project}." for number in range(count)]
        return [inserted.passage.id for inserted in await stores.insert(new_id("agent"), *texts)]


async def done(stores: Stores, project: str, ids: Sequence[str]) -> None:
    with context.use(as_project(project)):
        await stores.pending.done(project, await stores.pending.load(project, ids))


async def test_a_backlog_of_one_project_does_not_delay_a_passage_of_another(
    stores: Stores,
) -> None:
    before = await passages_of(stores, "project-a", 100)
    single = await passages_of(stores, "project-b", 1)
    after = await passages_of(stores, "project-a", 100)
    batch = (await stores.pending.find(16)).ids
    assert batch["project-b"] == single
    assert len(batch["project-a"]) == 15
    # Of one project those that came now do not wait for its backlog.
    assert set(batch["project-a"]) & set(before)
    assert set(batch["project-a"]) & set(after)


async def test_every_project_is_served_in_turn_when_a_batch_cannot_hold_all(
    stores: Stores,
) -> None:
    for number in range(9):
        await passages_of(stores, f"project-{number}", 5)
    # Two projects share a batch of four. The turn advances although nothing is noted as done.
    served = [project for _ in range(5) for project in (await stores.pending.find(4)).ids]
    assert sorted(served) == [f"project-{number}" for number in range(9)]


async def test_a_single_project_can_fill_a_batch(stores: Stores) -> None:
    ids = await passages_of(stores, "project-a", 20)
    first = (await stores.pending.find(16)).ids
    assert {project: len(some) for project, some in first.items()} == {"project-a": 16}
    await done(stores, "project-a", first["project-a"])
    rest = (await stores.pending.find(16)).ids
    assert sorted([*first["project-a"], *rest["project-a"]]) == sorted(ids)


async def test_checking_an_empty_queue_costs_one_statement(stores: Stores) -> None:
    before = stores.worker.statistics.statements
    assert (await stores.pending.find(16)).ids == {}
    assert stores.worker.statistics.statements - before == 1


async def test_files_of_projects_are_indexed_in_turn(stores: Stores) -> None:
    for project, count in (("project-a", 6), ("project-b", 1), ("project-c", 2)):
        with context.use(as_project(project)):
            for _ in range(count):
                await stores.index_file(new_id("folder"), new_id("file"), "words")
    served = []
    for _ in range(9):
        async with stores.queue.claim() as queued:
            assert queued is not None
            served.append(queued.project_id)
            with context.use(as_project(queued.project_id)):
                batch = await stores.queue.next(queued, 4)
                assert batch is not None
                await stores.queue.indexed(queued, batch)
    a, b, c = "project-a", "project-b", "project-c"
    assert served == [a, b, c, a, c, a, a, a, a]
    async with stores.queue.claim() as queued:
        assert queued is None


async def test_dropped_files_come_before_the_project_whose_turn_it_is(stores: Stores) -> None:
    files = {}
    for project in ("project-a", "project-b"):
        with context.use(as_project(project)):
            for number in range(3):
                files[project, number] = new_id("file")
                await stores.index_file(new_id("folder"), files[project, number], "words")
    with context.use(as_project("project-b")):
        # The newest sets, whose turn would come last.
        await stores.chunks.drop([files["project-b", 2]], [])
        await stores.index_file(new_id("folder"), files["project-b", 1], "other words")
    served = []
    for _ in range(7):
        async with stores.queue.claim() as queued:
            assert queued is not None
            served.append((queued.project_id[-1], queued.state.value))
            with context.use(as_project(queued.project_id)):
                if queued.state is SetState.DROPPED:
                    await stores.queue.delete_dropped(queued)
                    continue
                batch = await stores.queue.next(queued, 4)
                assert batch is not None
                await stores.queue.indexed(queued, batch)
    assert served[:2] == [("b", "dropped")] * 2
    assert [project for project, _ in served[2:]] == ["a", "b", "a", "b", "a"]
