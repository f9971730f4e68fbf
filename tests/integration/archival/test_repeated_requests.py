"""Repeated uploads and changes of archives."""

from __future__ import annotations

import pytest

from integration.archival.archival_calls import count, made
from integration.archival.conftest import Client
from passage_uploads import new_passages, upload_passages
from strata.api.archival.v1 import archive_service_pb2 as archive_pb
from strata.protocol.errors import AlreadyExistsError, InvalidArgumentError, Reason
from strata.shared.ids import new_id

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def upload(
    client: Client, archive: str, *messages: list[str], request_id: str = ""
) -> tuple[int, int]:
    responses = await upload_passages(
        client.passages, *map(new_passages, messages), archive_id=archive, request_id=request_id
    )
    assert responses[-1].complete
    return responses[-1].inserted_count, responses[-1].duplicate_count


async def test_a_repeated_upload_gets_the_first_answer(client: Client) -> None:
    archive, request = await made(client), new_id("x")
    first = await upload(client, archive, ["a", "b"], ["b", "c"], request_id=request)
    assert first == (3, 1)
    # The same passages in other messages are the same upload.
    assert await upload(client, archive, ["a"], [], ["b", "b", "c"], request_id=request) == first
    assert await count(client, archive) == 3


async def test_another_upload_of_the_same_id_stores_nothing(client: Client) -> None:
    archive, request = await made(client), new_id("x")
    await upload(client, archive, ["a"], request_id=request)
    for other in (["x"], ["y"]), (["a"], ["y"]), (["x"],):
        with pytest.raises(AlreadyExistsError) as caught:
            await upload(client, archive, *other, request_id=request)
        assert caught.value.reason is Reason.REQUEST_ID_REUSED
    with pytest.raises(AlreadyExistsError):
        await upload(client, await made(client), ["a"], request_id=request)
    assert await count(client, archive) == 1


async def test_an_upload_that_failed_may_be_finished_later(client: Client) -> None:
    archive, request = await made(client), new_id("x")
    with pytest.raises(InvalidArgumentError):
        await upload(client, archive, ["a"], ["b"], [" "], request_id=request)
    # Parts before the wrong message are stored, and are not duplicates when they are sent again.
    assert await count(client, archive) == 2
    assert await upload(client, archive, ["a"], ["b"], ["c"], request_id=request) == (3, 0)


async def test_repetitions_without_request_id_are_not_recognised(client: Client) -> None:
    archive = await made(client)
    assert await upload(client, archive, ["a"]) == (1, 0)
    assert await upload(client, archive, ["a"]) == (0, 1)


async def test_an_upload_without_passages_is_refused(client: Client) -> None:
    archive = await made(client)
    nothing: list[list[list[str]]] = [[], [[]], [[], []]]
    for messages in nothing:
        with pytest.raises(InvalidArgumentError) as caught:
            await upload(client, archive, *messages)
        assert [violation.field for violation in caught.value.violations] == ["passages"]


async def test_the_request_id_of_a_creation_is_refused_for_another_archive(client: Client) -> None:
    creation = archive_pb.CreateArchiveRequest(request_id=new_id("x"), name=new_id("x"))
    first = await client.archives.CreateArchive(creation)
    assert await client.archives.CreateArchive(creation) == first
    creation.name = new_id("x")
    with pytest.raises(AlreadyExistsError) as caught:
        await client.archives.CreateArchive(creation)
    assert caught.value.reason is Reason.REQUEST_ID_REUSED


async def test_a_repeated_change_of_an_archive_gets_the_first_answer(client: Client) -> None:
    archive, request = await made(client), new_id("x")
    change = archive_pb.UpdateArchiveRequest(
        request_id=request, archive_id=archive, description="one"
    )
    first = await client.archives.UpdateArchive(change)
    other = archive_pb.UpdateArchiveRequest(archive_id=archive, description="two")
    await client.archives.UpdateArchive(other)
    assert await client.archives.UpdateArchive(change) == first
    change.description = "three"
    with pytest.raises(AlreadyExistsError) as caught:
        await client.archives.UpdateArchive(change)
    assert caught.value.reason is Reason.REQUEST_ID_REUSED
    seen = await client.archives.GetArchive(archive_pb.GetArchiveRequest(archive_id=archive))
    assert seen.archive.description == "two"
