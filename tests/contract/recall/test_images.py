"""The contract of images of messages, on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from callers import as_project
from image_samples import png
from recall_conversations import Talk
from strata.api.common.v1 import message_pb2 as common
from strata.protocol.errors import AbortedError, NotFoundError, Reason
from strata.protocol.images import image_id
from strata.recall.convert import messages as convert
from strata.recall.domain.messages import Message, MessageFilter, Step
from strata.recall.domain.retention_worker import RetentionWorker
from strata.recall.store import (
    PostgresImageStore,
    PostgresOldMessages,
    PostgresRetentionSettings,
)
from strata.shared import context
from strata.shared.clock import ManualClock
from strata.shared.db import Database, sql
from strata.shared.ids import new_id

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


class Store:
    """The database with a conversation."""

    def __init__(self, service: Database, worker: Database, admin: Database) -> None:
        self.service, self.worker, self.admin = service, worker, admin
        self.images = PostgresImageStore(service)

    async def talk(self) -> Talk:
        return await Talk(self.service).open()

    async def count(self, project: str) -> int:
        """Returns how many images of a project are stored."""
        async with self.service.transaction(project_id=project) as connection:
            result = await connection.execute(sql("SELECT count(*) FROM recall.images"))
            return int(result.scalar_one())


@pytest.fixture
async def store(urls: Any, database: Database, worker: Database) -> AsyncIterator[Store]:
    admin = Database(urls.admin_url)
    yield Store(database, worker, admin)
    await admin.close()


def picture(*images: bytes, run: str = "", role: Any = common.ROLE_USER) -> Message:
    """Returns a message with images, as a request contains it."""
    shown = [common.ImagePart(data=data) for data in images]
    parts = [common.Part(image=image) for image in shown]
    if role == common.ROLE_TOOL:
        parts = [common.Part(tool_return=common.ToolReturnPart(tool_call_id="1", images=shown))]
    wire = common.Message(id=new_id("message"), role=role, run_id=run, parts=parts)
    return convert.to_message(wire, NOW, step=int(role == common.ROLE_TOOL))


async def show(talk: Talk, *images: bytes) -> Message:
    run = new_id("run")
    start = await talk.windows.begin_turn(talk.id, talk.agent, run, 1, [picture(*images, run=run)])
    return start.inputs[0]


async def test_equal_images_are_stored_once_and_returned_unchanged(
    store: Store, project: str
) -> None:
    talk = await store.talk()
    first, second = png(3, 2), png(3, 2, shade=9)
    await show(talk, first, second, first)
    await show(await store.talk(), first)
    assert await store.count(project) == 2
    for data in (first, second):
        image = await store.images.get(image_id(data))
        assert (image.data, image.media_type) == (data, "image/png")
    window = await talk.windows.get(talk.id)
    assert window.messages[1].image_ids() == (image_id(first), image_id(second))
    assert window.messages[1].images == ()


async def test_image_of_another_project_is_not_found(store: Store) -> None:
    await show(await store.talk(), png())
    other = as_project()
    with context.use(other), pytest.raises(NotFoundError) as raised:
        await store.images.get(image_id(png()))
    assert raised.value.reason is Reason.IMAGE_NOT_FOUND


async def test_repeated_turn_and_step_store_no_image_again(store: Store, project: str) -> None:
    talk, run = await store.talk(), new_id("run")
    asked = picture(png(), run=run)
    for attempt in (1, 2):
        await talk.windows.begin_turn(talk.id, talk.agent, run, attempt, [asked])
    call = convert.to_message(
        common.Message(
            id=new_id("message"),
            role=common.ROLE_ASSISTANT,
            run_id=run,
            parts=[common.Part(tool_call=common.ToolCallPart(tool_call_id="1", name="f"))],
        ),
        NOW,
        step=1,
    )
    returned = picture(png(shade=1), run=run, role=common.ROLE_TOOL)
    step = Step(talk.id, talk.agent, run, 2, 1, (call, returned))
    assert await talk.windows.commit_step(step) == await talk.windows.commit_step(step)
    assert await store.count(project) == 2


async def test_step_that_is_refused_stores_no_image(store: Store, project: str) -> None:
    talk, run = await store.talk(), new_id("run")
    await talk.windows.begin_turn(talk.id, talk.agent, run, 2, [])
    step = Step(talk.id, talk.agent, run, 1, 1, (picture(png(), run=run),))
    with pytest.raises(AbortedError):
        await talk.windows.commit_step(step)
    assert await store.count(project) == 0


async def test_an_image_is_deleted_with_the_last_message_that_shows_it(
    store: Store, project: str
) -> None:
    one, two = await store.talk(), await store.talk()
    shared, own = png(), png(shade=1)
    await show(one, shared, own)
    await show(two, shared)
    await one.windows.delete_agent(one.agent)
    assert await store.count(project) == 1
    assert (await store.images.get(image_id(shared))).data == shared
    await two.windows.delete_agent(two.agent)
    assert await store.count(project) == 0


async def test_fork_keeps_the_images_of_its_copies(store: Store, project: str) -> None:
    talk = await store.talk()
    await show(talk, png())
    fork = await talk.fork()
    copy = (await fork.window())[1]
    assert copy.copied_from_id
    assert copy.image_ids() == (image_id(png()),)
    async with store.service.transaction() as connection:
        await connection.execute(
            sql("DELETE FROM recall.message_images WHERE message_id <> :id"), {"id": copy.id}
        )
    assert await store.count(project) == 1
    assert (await store.images.get(image_id(png()))).data == png()


async def test_retention_deletes_images_with_their_messages(store: Store, project: str) -> None:
    talk = await store.talk()
    clock = ManualClock(NOW)
    await show(talk, png())
    await talk.turn("between")
    await show(talk, png(shade=1))
    kept = (await talk.window())[-1]
    await talk.turn("after")
    await talk.compact(kept)
    async with store.service.transaction() as connection:
        # The ends of a summary's range stay; the first image is not one of them.
        await connection.execute(sql("UPDATE recall.compactions SET first_message_id = ''"))
    settings = PostgresRetentionSettings(store.service)
    await settings.set(30, clock.now())
    old = PostgresOldMessages(store.service, store.worker)
    clock.advance(timedelta(days=31).total_seconds())
    assert await RetentionWorker(old, clock, batch=3, every=1).round() > 0
    assert await store.count(project) == 1
    assert (await store.images.get(image_id(png(shade=1)))).data == png(shade=1)
    listed = await talk.log.page(MessageFilter(conversation_id=talk.id), 500, None)
    shown = [image_id for m in listed.messages for image_id in m.image_ids()]
    assert shown == [image_id(png(shade=1))]


async def test_image_that_is_stored_while_another_agent_is_deleted_is_not_lost(
    store: Store, project: str
) -> None:
    for _ in range(8):
        leaving, staying = await store.talk(), await store.talk()
        await show(leaving, png())
        await asyncio.gather(leaving.windows.delete_agent(leaving.agent), show(staying, png()))
        assert (await store.images.get(image_id(png()))).data == png()
        await staying.windows.delete_agent(staying.agent)
        assert await store.count(project) == 0


async def test_a_turn_without_images_runs_no_image_statements(store: Store) -> None:
    talk = await store.talk()
    with store.service.statistics.record() as statements:
        await talk.turn("Hello.")
        await talk.windows.get(talk.id)
        await talk.fork()
    assert statements
    assert not [statement for statement in statements if "images" in statement]
