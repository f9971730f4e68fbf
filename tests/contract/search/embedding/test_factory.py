"""Models as the settings name them, over a real socket."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from contract.search.embedding.conftest import EmbeddingServer, Reply, vectors_reply
from strata.archival.settings import ArchivalSettings
from strata.protocol.errors import ResourceExhaustedError, UnavailableError
from strata.shared.search import engines
from strata.shared.search.embedding import EmbeddingModels
from strata.shared.search.embedding.base import ENGLISH_MODEL, MULTILINGUAL_MODEL
from strata.shared.search.engines import open_models
from strata.shared.shared_resources import SharedResources


async def opened(
    stack: AsyncExitStack, server: EmbeddingServer, **settings: Any
) -> EmbeddingModels:
    endpoint = {"name": "tiny", "model": "tiny-v2", "dim": 4, "base_url": server.base_url}
    endpoint |= {"api_key": "secret", "query_prefix": "query: "}
    made = ArchivalSettings(embedding_models=[endpoint], **settings)
    return await open_models(made, SharedResources(), stack)


async def test_the_settings_decide_the_requests_to_a_model(
    stack: AsyncExitStack, server: EmbeddingServer
) -> None:
    models = await opened(stack, server)
    assert models.ids == [ENGLISH_MODEL, MULTILINGUAL_MODEL, "tiny"]
    tiny = await models.get("tiny")
    assert (tiny.model_id, tiny.dim, tiny.normalized) == ("tiny", 4, True)
    await tiny.embed(["a"], "query")
    await tiny.embed(["a"], "query")
    [request] = server.requests  # the second was answered from the cache
    assert (request["model"], request["input"]) == ("tiny-v2", ["query: a"])
    assert server.authorizations == ["bearer secret"]


async def test_settings_of_one_endpoint_still_define_the_default_model(
    stack: AsyncExitStack, server: EmbeddingServer
) -> None:
    settings = ArchivalSettings(
        embedding_provider="openai",
        embedding_base_url=server.base_url,
        embedding_api_key="k",
        embedding_model="my-model",
        embedding_dim=4,
    )
    models = await open_models(settings, SharedResources(), stack)
    assert (models.default.id, models.default.dim) == ("my-model", 4)
    vectors = await (await models.get("my-model")).embed(["abc"], "document")
    assert len(vectors[0]) == 4


@pytest.mark.parametrize("retries", [0, 2])
async def test_a_rate_limited_endpoint_is_retried_a_few_times(
    stack: AsyncExitStack, server: EmbeddingServer, retries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "EMBEDDING_RETRIES", retries)
    headers = {"retry-after-ms": "1"}
    server.script = lambda request: Reply(429, {"error": {"message": "slow"}}, headers)
    tiny = await (await opened(stack, server)).get("tiny")
    with pytest.raises(ResourceExhaustedError):
        await tiny.embed(["a"], "document")
    assert len(server.requests) == retries + 1
    server.script = vectors_reply
    assert len(await tiny.embed(["a"], "document")) == 1


async def test_a_call_to_a_silent_endpoint_times_out(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "EMBEDDING_RETRIES", 0)
    given_up = asyncio.Event()

    async def say_nothing(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await given_up.wait()
        writer.close()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    server = EmbeddingServer()
    server.base_url = f"http://127.0.0.1:{port}/v1"
    models = await opened(stack, server, embedding_timeout_s=0.2)
    with pytest.raises(UnavailableError):
        await (await models.get("tiny")).embed(["a"], "query")
    given_up.set()
    silent.close()
    await silent.wait_closed()
