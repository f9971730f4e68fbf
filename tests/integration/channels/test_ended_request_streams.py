"""Errors of a service that ends a call while the client is still sending requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
import pytest

from strata.client.channel import open_gateway_channel
from strata.protocol.errors import ResourceExhaustedError, StrataError

CALLS = 300
AT_ONCE = 30


class Refusing(grpc.GenericRpcHandler):
    """Accepts streams of requests, and ends each call before it has read them."""

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any]:
        if handler_call_details.method.endswith("/One"):
            return grpc.stream_unary_rpc_method_handler(refuse)
        return grpc.stream_stream_rpc_method_handler(refuse)


async def refuse(requests: Any, context: Any) -> None:
    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "The quota is used up.")


@pytest.fixture
async def channel() -> AsyncIterator[Any]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Refusing(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with open_gateway_channel(f"127.0.0.1:{port}", "a key", []) as channel:
        yield channel
    await server.stop(None)


async def requests() -> AsyncIterator[bytes]:
    for _ in range(100):
        yield bytes(60_000)


async def await_response(channel: Any) -> None:
    await channel.stream_unary("/a.Service/One")(requests())


async def iterate(channel: Any) -> None:
    async for _ in channel.stream_stream("/a.Service/Many")(requests()):
        pass


async def write_and_await(channel: Any) -> None:
    call = channel.stream_unary("/a.Service/One")()
    await write_all(call)
    await call


async def write_and_read(channel: Any) -> None:
    call = channel.stream_stream("/a.Service/Many")()
    await write_all(call)
    await call.read()


async def write_all(call: Any) -> None:
    # The error of grpc.aio for a call that had ended before the write began.
    with suppress(asyncio.InvalidStateError):
        async for request in requests():
            await call.write(request)


@pytest.mark.parametrize("send", [await_response, iterate, write_and_await, write_and_read])
async def test_the_client_raises_the_error_of_the_service(channel: Any, send: Any) -> None:
    # A write fails as the call ends, in about one call of a hundred.
    async def outcome() -> tuple[type[StrataError], str]:
        try:
            await send(channel)
        except StrataError as error:
            return type(error), error.message
        raise AssertionError("the call succeeded")

    seen: Counter[Any] = Counter()
    for _ in range(CALLS // AT_ONCE):
        seen.update(await asyncio.gather(*(outcome() for _ in range(AT_ONCE))))
    assert seen == {(ResourceExhaustedError, "The quota is used up."): CALLS}
