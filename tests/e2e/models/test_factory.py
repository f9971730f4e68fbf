"""Opening, listing and closing, against real sockets."""

import asyncio
import socket

import pytest

from doubles.bench import Bench, collect, request
from doubles.model_server import ModelServer
from doubles.script import Dialect, say
from loop_time import put_forward
from strata.agent_loop.domain.model.errors import ModelErrorKind
from strata.agent_loop.models.factory import ModelFactory
from strata.agent_loop.models.registry import ModelEndpoint, ModelRegistry


def url(server: ModelServer, dialect: Dialect) -> str:
    return server.anthropic_url if dialect == "anthropic" else server.openai_url


async def test_models_are_listed_with_their_window(factory: ModelFactory, dialect: Dialect) -> None:
    async with ModelServer(models=["big", "org/small"], context_window=4096) as server:
        endpoint = ModelEndpoint("here", dialect, url(server, dialect))
        [model] = await factory.list_models([endpoint])
    assert [(m.handle, m.context_window) for m in model.models] == [
        ("here/big", 4096),
        ("here/org/small", 4096),
    ]
    assert model.error is None


async def test_one_dead_endpoint_does_not_hide_the_others(
    factory: ModelFactory, dialect: Dialect, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = asyncio.Event()
    ask = factory._ask

    async def noting(endpoint: ModelEndpoint) -> list[tuple[str, int | None]]:
        models = await ask(endpoint)
        answered.set()
        return models

    monkeypatch.setattr(factory, "_ask", noting)
    loop = asyncio.get_running_loop()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        silent.setblocking(False)
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        dead = ModelEndpoint("dead", dialect, address)
        alive = ModelEndpoint("alive", dialect, url(server, dialect))
        asking = asyncio.create_task(factory.list_models([dead, alive], limit=60))
        asked, _ = await loop.sock_accept(silent)
        with asked:
            assert await loop.sock_recv(asked, 1)
            await answered.wait()
            put_forward(60)
            first, second = await asking
    assert first.error is not None
    assert first.error.kind is ModelErrorKind.TIMEOUT
    assert [model.handle for model in second.models] == ["alive/test-model"]


async def test_a_resolved_handle_answers(
    factory: ModelFactory, dialect: Dialect, server: ModelServer
) -> None:
    endpoint = ModelEndpoint("here", dialect, url(server, dialect))
    server.script(say("It is me."))
    settings = ModelRegistry([endpoint]).resolve("here/org/model")
    _, reply = await collect(factory.model(settings), request())
    assert reply.text == "It is me."
    assert server.requests[0].body["model"] == "org/model"


async def test_equal_settings_return_the_same_model(bench: Bench) -> None:
    assert bench.model() is bench.model()
    assert bench.model() is not bench.model(temperature=None)


async def test_concurrent_streams_share_one_client(bench: Bench) -> None:
    bench.server.respond(lambda call: say(call.last_text))
    answers = await asyncio.gather(*(bench.ask(f"number {n}") for n in range(30)))
    assert [reply.text for _, reply in answers] == [f"number {n}" for n in range(30)]
