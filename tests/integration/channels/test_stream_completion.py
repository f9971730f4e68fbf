"""Streams that the client closes after their last message: the status in the log."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import grpc.aio
import pytest

from polling import eventually
from strata.protocol.stream_completion import complete_in_background
from strata.shared.bidi_call import call_and_answer
from strata.shared.channels import ChannelFactory
from strata.shared.metric_names import RPC_REQUESTS
from strata.shared.telemetry import Telemetry


def servicer(echo: Any, ends: bool) -> Any:
    class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Count(self, request: Any, context: Any) -> AsyncIterator[Any]:
            yield request
            # Work that is left after the last message.
            await asyncio.sleep(0.1 if ends else 3600)

        async def Chat(self, requests: Any, context: Any) -> AsyncIterator[Any]:
            async for request in requests:
                yield request
                await asyncio.sleep(0.1)
                return

    return Servicer()


@pytest.fixture
async def factory() -> AsyncIterator[ChannelFactory]:
    made = ChannelFactory()
    yield made
    await made.close()


def codes(telemetry: Telemetry) -> Callable[[], dict[str, float]]:
    def read() -> dict[str, float]:
        return {
            sample.labels["code"]: telemetry.total(RPC_REQUESTS, **sample.labels)
            for sample in telemetry.samples()
            if sample.name == RPC_REQUESTS
        }

    return read


async def test_a_completed_stream_is_logged_with_its_final_status(
    start: Any, echo: Any, keys: Any, factory: ChannelFactory
) -> None:
    server = await start(servicer(echo, ends=True))
    ended = codes(server.telemetry)
    stub = echo.pb_grpc.EchoServiceStub(factory.channel(server.address))

    async def first_of_count() -> None:
        call = stub.Count(echo.pb.Note())
        async for _ in call:
            complete_in_background(call)
            return

    with keys.signed_in():
        await first_of_count()
        gc.collect()
        await eventually(lambda: bool(ended()))
    assert ended() == {"OK": 1}


async def test_a_stream_with_nested_requests_completes_after_its_result(
    start: Any, echo: Any, keys: Any, factory: ChannelFactory
) -> None:
    server = await start(servicer(echo, ends=True))
    ended = codes(server.telemetry)
    stub = echo.pb_grpc.EchoServiceStub(factory.channel(server.address))
    with keys.signed_in():
        stream: Any = call_and_answer(
            stub.Chat, echo.pb.Note(), lambda _: None, lambda _: True, ends=lambda _: True
        )
        async with aclosing(stream) as results:
            async for _ in results:
                break
        await eventually(lambda: bool(ended()))
    assert ended() == {"OK": 1}


async def test_a_call_that_the_server_does_not_end_is_cancelled(
    start: Any, echo: Any, keys: Any, factory: ChannelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.protocol.stream_completion._LONGEST_S", 0.1)
    server = await start(servicer(echo, ends=False))
    ended = codes(server.telemetry)
    stub = echo.pb_grpc.EchoServiceStub(factory.channel(server.address))
    with keys.signed_in():
        call = stub.Count(echo.pb.Note())
        assert await call.read() is not grpc.aio.EOF
        complete_in_background(call)
        await eventually(lambda: bool(ended()))
    assert ended() == {"CANCELLED": 1}


async def test_no_task_reads_requests_after_the_end_of_a_call(
    start: Any, echo: Any, keys: Any, factory: ChannelFactory
) -> None:
    server = await start(servicer(echo, ends=True))
    stub = echo.pb_grpc.EchoServiceStub(factory.channel(server.address))
    with keys.signed_in():
        stream: Any = call_and_answer(stub.Chat, echo.pb.Note(), lambda _: None, lambda _: True)
        async with aclosing(stream) as responses:
            assert len([response async for response in responses]) == 1
    await eventually(
        lambda: not [task for task in asyncio.all_tasks() if "request_iterator" in repr(task)]
    )
