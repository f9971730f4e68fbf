"""The OpenAI SDK against a real socket: order, batches, retries, wrong answers."""

import asyncio
import math
import traceback
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from openai import AsyncOpenAI

from strata.protocol.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    Reason,
    ResourceExhaustedError,
    StrataError,
    UnavailableError,
)
from strata.shared.context import background_work_of
from strata.shared.search.embedding import Embedder
from strata.shared.search.embedding.base import Kind
from strata.shared.search.embedding.openai_compatible import (
    OpenAiEmbedder,
    OpenAiEmbeddingModel,
    TimedHttpClient,
)

from .conftest import EmbeddingServer, Reply, vectors_reply

MODEL = OpenAiEmbeddingModel(name="tiny", dim=4)


@pytest.fixture
async def client(server: EmbeddingServer) -> AsyncIterator[AsyncOpenAI]:
    made = AsyncOpenAI(base_url=server.base_url, api_key="secret-key", max_retries=2, timeout=60)
    yield made
    await made.close()


def failing(times: int, reply: Reply) -> Any:
    """Returns a script that answers with `reply` some times, then with vectors."""
    left = times

    def script(request: dict[str, Any]) -> Reply:
        nonlocal left
        left -= 1
        return reply if left >= 0 else vectors_reply(request)

    return script


async def test_vectors_are_returned_in_the_order_of_the_texts(
    server: EmbeddingServer, client: AsyncOpenAI
) -> None:
    embedder = OpenAiEmbedder(client, MODEL)
    assert isinstance(embedder, Embedder)
    vectors = await embedder.embed(["four", "seventeen letters", "a"], "document")
    lengths = [vector[0] / vector[1] * 3 for vector in vectors]
    assert lengths == pytest.approx([4, 17, 1], rel=1e-5)
    assert all(math.isclose(math.hypot(*vector), 1, abs_tol=1e-6) for vector in vectors)
    assert server.authorizations == ["bearer secret-key"]
    assert "dimensions" not in server.requests[0]


async def test_many_texts_are_sent_in_batches(server: EmbeddingServer, client: AsyncOpenAI) -> None:
    embedder = OpenAiEmbedder(client, replace(MODEL, batch_texts=10))
    texts = ["x" * (number + 1) for number in range(35)]
    vectors = await embedder.embed(texts, "document")
    assert sorted(len(request["input"]) for request in server.requests) == [5, 10, 10, 10]
    assert [round(vector[0] / vector[1] * 3) for vector in vectors] == list(range(1, 36))


async def test_a_batch_keeps_to_the_token_budget(
    server: EmbeddingServer, client: AsyncOpenAI
) -> None:
    embedder = OpenAiEmbedder(client, replace(MODEL, batch_tokens=500))
    await embedder.embed(["word " * 200] * 4, "document")
    assert [len(request["input"]) for request in server.requests] == [1, 1, 1, 1]


async def test_a_query_does_not_wait_for_all_texts_of_another_project(
    server: EmbeddingServer, client: AsyncOpenAI
) -> None:
    embedder = OpenAiEmbedder(client, replace(MODEL, batch_texts=1))

    async def embed(project_id: str, texts: list[str], kind: Kind) -> None:
        with background_work_of(project_id):
            await embedder.embed(texts, kind)

    flood = [f"text {number}" for number in range(30)]
    flooding = asyncio.create_task(embed("project-busy", flood, "document"))
    while not server.requests:
        await asyncio.sleep(0)
    await embed("project-quiet", ["the query"], "query")
    assert not flooding.done()
    await flooding
    inputs = [request["input"] for request in server.requests]
    assert inputs.index(["the query"]) < 10
    assert len(inputs) == 31


async def test_an_empty_list_of_texts_sends_no_request(
    server: EmbeddingServer, client: AsyncOpenAI
) -> None:
    assert await OpenAiEmbedder(client, MODEL).embed([], "query") == []
    assert server.requests == []


async def test_queries_and_documents_get_their_prefixes(
    server: EmbeddingServer, client: AsyncOpenAI
) -> None:
    model = replace(MODEL, query_prefix="query: ", document_prefix="passage: ", request_dim=True)
    embedder = OpenAiEmbedder(client, model)
    await embedder.embed(["a"], "query")
    await embedder.embed(["b"], "document")
    assert [request["input"] for request in server.requests] == [["query: a"], ["passage: b"]]
    assert server.requests[0]["dimensions"] == 4
    assert embedder.model_id == "tiny@4"


async def test_an_empty_text_is_never_sent(server: EmbeddingServer, client: AsyncOpenAI) -> None:
    await OpenAiEmbedder(client, MODEL).embed(["", "\ud800"], "document")
    assert all(server.requests[0]["input"])


@pytest.mark.parametrize(
    "failure",
    [
        Reply(status=500, body={"error": {"message": "no"}}, headers={"retry-after-ms": "1"}),
        Reply(status=429, body={"error": {"message": "no"}}, headers={"retry-after-ms": "1"}),
        Reply(cut=True),
    ],
    ids=["500", "429", "cut"],
)
async def test_temporary_failures_are_retried(
    server: EmbeddingServer, client: AsyncOpenAI, failure: Reply
) -> None:
    server.script = failing(2, failure)
    assert len(await OpenAiEmbedder(client, MODEL).embed(["a"], "query")) == 1
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("reply", "error", "reason", "requests"),
    [
        (
            Reply(status=503, headers={"retry-after-ms": "1"}),
            UnavailableError,
            Reason.MODEL_UNAVAILABLE,
            3,
        ),
        (
            Reply(status=429, headers={"retry-after-ms": "1"}),
            ResourceExhaustedError,
            Reason.MODEL_RATE_LIMITED,
            3,
        ),
        (Reply(status=401), FailedPreconditionError, Reason.MODEL_AUTHENTICATION, 1),
        (Reply(status=400), InvalidArgumentError, Reason.MODEL_REQUEST_REFUSED, 1),
        (Reply(status=404), InvalidArgumentError, Reason.MODEL_REQUEST_REFUSED, 1),
        (Reply(body=b"<html>"), UnavailableError, Reason.MODEL_UNAVAILABLE, 1),
        (Reply(body={"error": "overloaded"}), UnavailableError, Reason.MODEL_UNAVAILABLE, 1),
    ],
    ids=["503", "429", "401", "400", "404", "no json", "error with 200"],
)
async def test_permanent_failures_have_different_errors(
    server: EmbeddingServer,
    client: AsyncOpenAI,
    reply: Reply,
    error: type[StrataError],
    reason: Reason,
    requests: int,
) -> None:
    server.script = lambda _request: reply
    with pytest.raises(error) as caught:
        await OpenAiEmbedder(client, MODEL).embed(["my private text"], "query")
    assert caught.value.reason is reason
    assert len(server.requests) == requests
    assert "private" not in caught.value.message


async def test_another_dimension_is_refused(server: EmbeddingServer, client: AsyncOpenAI) -> None:
    server.script = lambda request: vectors_reply(request, dim=6)
    with pytest.raises(FailedPreconditionError, match="6 dimensions, but 4 are configured"):
        await OpenAiEmbedder(client, MODEL).embed(["a"], "query")


async def test_too_few_vectors_are_refused(server: EmbeddingServer, client: AsyncOpenAI) -> None:
    server.script = lambda request: vectors_reply({**request, "input": request["input"][1:]})
    with pytest.raises(UnavailableError, match="2 texts with 1 vectors"):
        await OpenAiEmbedder(client, MODEL).embed(["a", "b"], "query")


async def test_a_vector_of_zeros_is_refused(server: EmbeddingServer, client: AsyncOpenAI) -> None:
    def zeros(request: dict[str, Any]) -> Reply:
        data = [{"object": "embedding", "index": 0, "embedding": [0.0] * 4}]
        return Reply(body={"object": "list", "data": data, "model": "tiny"})

    server.script = zeros
    with pytest.raises(UnavailableError, match="zero vector"):
        await OpenAiEmbedder(client, MODEL).embed(["a"], "query")


async def test_the_estimated_token_count_is_not_below_the_real_one(client: AsyncOpenAI) -> None:
    embedder = OpenAiEmbedder(client, MODEL)
    assert embedder.count_tokens("") >= 0
    # 44 characters, 10 tokens in OpenAI's tokenizers.
    assert 10 <= embedder.count_tokens("The quick brown fox jumps over the lazy dog.") <= 20


async def test_key_that_the_endpoint_repeats_is_neither_raised_nor_logged(
    server: EmbeddingServer, client: AsyncOpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    key = client.api_key
    for body in ({"error": {"message": f"Who is {key}?", "code": key}}, f"no JSON {key}".encode()):
        server.script = failing(3, Reply(status=401, body=body))
        with pytest.raises(FailedPreconditionError) as caught:
            await OpenAiEmbedder(client, MODEL).embed(["x"], "query")
        output = "".join(traceback.format_exception(caught.value)) + caplog.text
        assert key not in output
        assert "[secret API key]" in caplog.text


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nx-long: ",
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9999\r\n\r\n",
    ],
    ids=["headers", "body"],
)
async def test_response_sent_byte_by_byte_is_ended_at_its_deadline(head: bytes) -> None:
    left: list[BaseException] = []

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        try:
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)
        except ConnectionError as error:
            left.append(error)

    slow = await asyncio.start_server(trickle, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{slow.sockets[0].getsockname()[1]}/v1"
    client = AsyncOpenAI(
        base_url=url, api_key="key", max_retries=1, timeout=60, http_client=TimedHttpClient(0.1)
    )
    async with slow, client:
        with pytest.raises(UnavailableError):
            await OpenAiEmbedder(client, MODEL).embed(["text"], "query")
        while len(left) < 2:
            await asyncio.sleep(0.01)
