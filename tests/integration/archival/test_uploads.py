"""``UploadPassages``: counts after each message, and resuming after an interruption."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from integration.archival.archival_calls import count, made, upload
from integration.archival.conftest import Client
from passage_uploads import upload_passages
from strata.api.archival.v1 import passage_service_pb2 as pb
from strata.protocol.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    Reason,
)
from strata.shared.ids import new_id

pytestmark = pytest.mark.asyncio(loop_scope="session")


def counts(answers: list[pb.UploadPassagesResponse]) -> list[tuple[int, int, int]]:
    return [
        (answer.received_count, answer.inserted_count, answer.duplicate_count) for answer in answers
    ]


async def test_each_message_is_acknowledged_when_it_is_durable(client: Client) -> None:
    archive = await made(client)
    turns: asyncio.Queue[list[str] | None] = asyncio.Queue()

    async def stream() -> AsyncIterator[pb.UploadPassagesRequest]:
        yield pb.UploadPassagesRequest(archive_id=archive)
        while (texts := await turns.get()) is not None:
            yield pb.UploadPassagesRequest(passages=[pb.NewPassage(text=text) for text in texts])

    answers = aiter(client.passages.UploadPassages(stream()))
    assert (await anext(answers)).received_count == 0
    for texts, stored in ((["a", "b"], 2), (["b", "c"], 3)):
        await turns.put(texts)
        answer = await anext(answers)
        # The next message is sent only now: items that were counted are stored.
        assert (answer.inserted_count, await count(client, archive)) == (stored, stored)
        assert not answer.complete
    await turns.put(None)
    last = await anext(answers)
    assert (last.received_count, last.inserted_count, last.duplicate_count) == (4, 3, 1)
    assert last.complete


async def test_interrupted_upload_resumes(client: Client) -> None:
    archive, request = await made(client), new_id("x")
    with pytest.raises(InvalidArgumentError):
        await upload(client, archive, ["a", "b"], ["c"], [" "], request_id=request)
    # A request for the offset gets an answer, and does not end the upload.
    (asked, last) = await upload(client, archive, [], request_id=request)
    assert (asked.received_count, last.received_count, last.complete) == (3, 3, False)
    answers = await upload(client, archive, ["d"], request_id=request, skip=3)
    assert counts(answers) == [(4, 4, 0), (4, 4, 0)]
    assert answers[-1].complete
    assert await count(client, archive) == 4


async def test_durable_parts_may_be_sent_again(client: Client) -> None:
    archive, request = await made(client), new_id("x")
    with pytest.raises(InvalidArgumentError):
        await upload(client, archive, ["a", "b"], [" "], request_id=request)
    answers = await upload(client, archive, ["a"], ["b", "c"], request_id=request)
    # No item counts as a duplicate: both requests are one upload.
    assert counts(answers) == [(2, 2, 0), (3, 3, 0), (3, 3, 0)]
    again = await upload(client, archive, ["a", "b", "c"], request_id=request)
    assert counts(again) == [(3, 3, 0), (3, 3, 0)]
    assert again[-1].complete


async def test_another_upload_of_the_same_id_is_refused(client: Client) -> None:
    archive, request = await made(client), new_id("x")
    await upload(client, archive, ["a", "b"], request_id=request)
    for texts, skip in ((["a", "x"], 0), (["a", "b", "c"], 0), (["c"], 2)):
        with pytest.raises(AlreadyExistsError) as caught:
            await upload(client, archive, texts, request_id=request, skip=skip)
        assert caught.value.reason is Reason.REQUEST_ID_REUSED
    with pytest.raises(AlreadyExistsError):
        await upload(client, await made(client), ["a", "b"], request_id=request)
    assert await count(client, archive) == 2


async def test_skip_count_beyond_the_durable_passages_is_refused(client: Client) -> None:
    archive, request = await made(client), new_id("x")
    for skip in (1, -1):
        with pytest.raises(InvalidArgumentError) as caught:
            await upload(client, archive, ["a"], request_id=request, skip=skip)
        assert [violation.field for violation in caught.value.violations] == ["skip_count"]
    with pytest.raises(InvalidArgumentError) as caught:
        await upload(client, archive, [], request_id=request)
    assert [violation.field for violation in caught.value.violations] == ["passages"]


async def test_two_streams_of_one_upload_store_everything_once(client: Client) -> None:
    archive, request = await made(client), new_id("x")
    messages = [[f"fact {n} {m}" for m in range(20)] for n in range(6)]
    both = await asyncio.gather(
        upload(client, archive, *messages, request_id=request),
        upload(client, archive, *messages, request_id=request),
    )
    assert [counts(answers)[-1] for answers in both] == [(120, 120, 0)] * 2
    assert await count(client, archive) == 120


async def test_an_upload_counts_near_duplicates(client: Client) -> None:
    archive = await made(client)
    words = "the ship sails on to the island in the south and comes back in May"
    answers = await upload(client, archive, [words], [f"{words}.", f"{words}!", "else"])
    assert [answer.near_duplicate_count for answer in answers] == [0, 2, 2]


async def test_an_upload_to_a_missing_archive_stores_nothing(client: Client) -> None:
    request = new_id("x")
    with pytest.raises(NotFoundError):
        await upload(client, new_id("archive"), ["a"], request_id=request)
    archive = await made(client)
    assert counts(await upload(client, archive, ["a"], request_id=request))[-1] == (1, 1, 0)


async def test_violations_name_the_passage_of_the_message(client: Client) -> None:
    archive, request = await made(client), new_id("x")

    async def fields(*messages: list[pb.NewPassage]) -> list[str]:
        with pytest.raises(InvalidArgumentError) as caught:
            await upload_passages(
                client.passages, *messages, archive_id=archive, request_id=request
            )
        return [violation.field for violation in caught.value.violations]

    durable, blank = pb.NewPassage(text="a"), pb.NewPassage(text=" ")
    of_other_model = pb.NewPassage(text="v", embedding=[1.0], embedding_model="other")
    assert await fields([blank]) == ["passages[0].text"]
    assert await fields([of_other_model]) == ["passages[0].embedding_model"]
    assert await fields([durable], [blank]) == ["passages[0].text"]
    assert await fields([durable, blank]) == ["passages[1].text"]
    assert await fields([durable, of_other_model]) == ["passages[1].embedding_model"]
