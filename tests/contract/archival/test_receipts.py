"""Repeated requests get their own stored response."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from archival_support import DIM, MODEL, NOW, Stores, archive, caller, new_passage
from strata.archival.convert.archives import own_archive
from strata.archival.domain.passages import ArchiveChange, ArchiveRef, UploadCounts
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


async def test_an_upload_answers_for_all_of_it_and_only_once(stores: Stores) -> None:
    agent = new_id("agent")
    place, template = ArchiveRef(agent_id=agent), own_archive(agent, MODEL, DIM, NOW)
    await stores.archives.prepare(agent)
    request = RequestKey("u1", "content")

    async def finish(text: str) -> UploadCounts:
        return await stores.passages.finish_upload(
            place, [new_passage(text)], template, request, UploadCounts(4, 1)
        )

    assert await stores.passages.upload_answer(request) is None
    assert not await stores.passages.is_answered("u1")
    assert await finish("one") == UploadCounts(5, 1)
    assert await stores.passages.is_answered("u1")
    assert await finish("two") == UploadCounts(5, 1)
    assert await stores.passages.upload_answer(request) == UploadCounts(5, 1)
    assert (await stores.archives.stats(agent)).passage_count == 1
    with pytest.raises(AlreadyExistsError):
        await stores.passages.upload_answer(RequestKey("u1", "other"))


async def test_another_project_may_use_the_same_request_id(stores: Stores) -> None:
    made = await stores.archives.create(archive("one"), "", RequestKey())
    await stores.archives.update(made.id, ArchiveChange(name="a"), NOW, RequestKey("r1", "a"))
    with context.use(caller(new_id("project"))):
        assert not await stores.passages.is_answered("r1")
        other = await stores.archives.create(archive("one"), "", RequestKey())
        changed = await stores.archives.update(
            other.id, ArchiveChange(name="b"), NOW, RequestKey("r1", "b")
        )
        assert changed.name == "b"


async def test_old_receipts_are_forgotten(stores: Stores) -> None:
    made = await stores.archives.create(archive("one"), "", RequestKey())
    await stores.archives.update(made.id, ArchiveChange(name="a"), NOW, RequestKey("r1", "a"))
    assert await RECEIPTS.delete_expired(stores.worker, timedelta(days=1)) == 0
    assert await RECEIPTS.delete_expired(stores.worker, timedelta(0)) == 1
    assert not await stores.passages.is_answered("r1")
