"""What PostgreSQL makes of the statements where its statistics know nothing yet."""

from __future__ import annotations

from archival_support import Stores
from plans import plan_of
from strata.archival.domain.passages import Filter
from strata.shared.ids import new_id


async def test_passages_are_read_by_id_in_a_table_that_has_just_grown(stores: Stores) -> None:
    """By archive and time, all of them would be walked through for each search."""
    agent = new_id("agent")
    stored = await stores.insert(agent, *(f"Passage number {number}." for number in range(1_500)))
    ids = [each.passage.id for each in stored[::200]]
    with stores.database.statistics.record() as texts:
        within = Filter((stored[0].passage.archive_id,))
        async with stores.passages.look("number", within, 10) as look:
            assert set(await look.by_ids(ids)) == set(ids)
    (statement,) = texts
    plan = await plan_of(stores.database, statement)
    # The passages themselves, and those that are nearly the same.
    assert plan.count("passages_pkey") == 2, plan
    assert "passages_by_time" not in plan
    assert "Seq Scan on passages" not in plan
