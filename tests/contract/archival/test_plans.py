"""Query plans of PostgreSQL with outdated statistics."""

from __future__ import annotations

import re

from archival_stores import Stores
from plans import generic_plan_of, plan_of, with_values
from strata.archival.domain.passages import MOST_TAGS, MOST_TAGS_COUNTED, Filter
from strata.archival.store.archives import _STATS
from strata.shared.context import current_project
from strata.shared.ids import new_id


async def test_passages_are_read_by_id_in_a_table_with_outdated_statistics(stores: Stores) -> None:
    """The index by archive and time would read all of them for each search."""
    agent = new_id("agent")
    stored = await stores.insert(agent, *(f"Passage number {number}." for number in range(1_500)))
    ids = [inserted.passage.id for inserted in stored[::200]]
    with stores.database.statistics.record() as texts:
        within = Filter((stored[0].passage.archive_id,))
        async with stores.passages.open_snapshot("number", within, 10) as snapshot:
            assert set(await snapshot.by_ids(ids)) == set(ids)
    (statement,) = texts
    plan = await plan_of(stores.database, statement)
    # The passages themselves, and those that are nearly the same.
    assert plan.count("passages_pkey") == 2, plan
    assert "passages_by_time" not in plan
    assert "Seq Scan on passages" not in plan


async def test_near_duplicates_are_read_by_id_in_a_young_table(stores: Stores) -> None:
    """The plan of the first passages is used until the table has statistics."""
    agent = new_id("agent")
    await stores.insert(agent, "The user lives in Lisbon.")
    with stores.database.statistics.record() as texts:
        await stores.insert(agent, "The user lives in Porto.")
    (statement,) = [statement for statement in texts if "passage_likeness" in statement]
    plan = await generic_plan_of(stores.database, statement)
    conditions = re.findall(r"using (\w+) on passages .*\n\s+Index Cond: (.*)", plan)
    assert [index for index, _ in conditions] == ["passages_pkey"] * 2, plan
    assert all("(id = " in condition for _, condition in conditions), plan


async def test_counts_for_the_prompt_read_only_the_shown_tags(stores: Stores) -> None:
    """There may be as many tags as passages; an index returns them by use."""
    agent = new_id("agent")
    await stores.insert(agent, "A fact.", tags=("first",))
    async with stores.database.transaction() as connection:
        await connection.driver.fetch(
            "INSERT INTO archival.archive_tags (project_id, archive_id, tag, count)"
            " SELECT project_id, archive_id, 'tag ' || n, n FROM archival.archive_tags,"
            " generate_series(1, 5000) n WHERE tag = 'first'"
        )
    stats = await stores.archives.stats(agent)
    assert stats.tags == tuple(f"tag {5000 - number}" for number in range(MOST_TAGS))
    assert stats.more_tags == MOST_TAGS_COUNTED
    values = {
        "project": f"'{current_project()}'",
        "agent": f"'{agent}'",
        "most": str(MOST_TAGS),
        "counted": str(MOST_TAGS + MOST_TAGS_COUNTED),
    }
    explain = "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) " + with_values(_STATS, values)
    async with stores.database.transaction(read_only=True) as connection:
        plan = "\n".join(row[0] for row in await connection.driver.fetch(explain))
    assert plan.count("archive_tags_most_used") == 1, plan
    assert "Seq Scan on archive_tags" not in plan
    assert "rows=5001" not in plan
