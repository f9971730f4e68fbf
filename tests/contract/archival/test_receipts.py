"""Repeated requests get their own stored response."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from archival_stores import NOW, Stores, archive
from callers import as_project
from strata.archival.domain.passages import ArchiveChange
from strata.archival.store import RECEIPTS
from strata.protocol.errors import AlreadyExistsError, NotFoundError, Reason
from strata.shared import context
from strata.shared.idempotency.keys import RequestKey
from strata.shared.ids import new_id

LATER = NOW + timedelta(hours=1)


async def test_a_repeated_change_of_an_archive_gets_the_first_answer(stores: Stores) -> None:
    made = await stores.archives.create(archive("one"), "", RequestKey())
    request = RequestKey("r1", "two")
    first = await stores.archives.update(made.id, ArchiveChange(name="two"), NOW, request)
    await stores.archives.update(made.id, ArchiveChange(name="three"), NOW)
    again = await stores.archives.update(made.id, ArchiveChange(name="two"), LATER, request)
    assert again == first
    assert (await stores.archives.get(made.id)).name == "three"
    with pytest.raises(AlreadyExistsError) as caught:
        await stores.archives.update(made.id, ArchiveChange(), NOW, RequestKey("r1", "other"))
    assert caught.value.reason is Reason.REQUEST_ID_REUSED


async def test_one_request_sent_many_times_at_once_changes_once(stores: Stores) -> None:
    made = await stores.archives.create(archive("one"), "", RequestKey())
    request = RequestKey("r1", "two")
    answers = await asyncio.gather(
        *(
            stores.archives.update(
                made.id, ArchiveChange(name="two"), NOW + timedelta(seconds=number), request
            )
            for number in range(6)
        )
    )
    assert len({answer.update_time for answer in answers}) == 1


async def test_a_request_that_failed_may_be_sent_again(stores: Stores) -> None:
    request = RequestKey("r1", "d")
    with pytest.raises(NotFoundError):
        await stores.archives.update(new_id("archive"), ArchiveChange(), NOW, request)
    made = await stores.archives.create(archive("one"), "", RequestKey())
    changed = await stores.archives.update(made.id, ArchiveChange(name="x"), NOW, request)
    assert changed.name == "x"


async def test_another_project_may_use_the_same_request_id(stores: Stores) -> None:
    made = await stores.archives.create(archive("one"), "", RequestKey())
    await stores.archives.update(made.id, ArchiveChange(name="a"), NOW, RequestKey("r1", "a"))
    with context.use(as_project()):
        other = await stores.archives.create(archive("one"), "", RequestKey())
        changed = await stores.archives.update(
            other.id, ArchiveChange(name="b"), NOW, RequestKey("r1", "b")
        )
        assert changed.name == "b"


async def test_old_receipts_are_deleted(stores: Stores) -> None:
    made = await stores.archives.create(archive("one"), "", RequestKey())
    await stores.archives.update(made.id, ArchiveChange(name="a"), NOW, RequestKey("r1", "a"))
    assert await RECEIPTS.delete_expired(stores.worker, timedelta(days=1)) == 0
    assert await RECEIPTS.delete_expired(stores.worker, timedelta(0)) == 1
    # The id of a deleted receipt may be used for another request.
    await stores.archives.update(made.id, ArchiveChange(name="b"), NOW, RequestKey("r1", "b"))
