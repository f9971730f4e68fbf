"""Streams of requests that one replica refuses and another one accepts."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from clocks import OffsetClock
from integration.channels.conftest import check_refusals, refusals, stub_to, targets
from polling import eventually
from strata.protocol.errors import DeadlineExceededError, Reason, UnavailableError
from strata.shared.channels import ChannelFactory, ChannelOptions
from strata.shared.clock_skew import SERVER_TIME_KEY
from strata.shared.request_stream import RequestStream
from strata.shared.server import GrpcServer

# With a clock that differs so much every token is refused.
REFUSED_S = -900


def servicer(echo: Any) -> Any:
    class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Sum(self, requests: Any, context: Any) -> Any:
            texts = [request.text async for request in requests]
            return echo.pb.Note(text=" ".join(texts), number=len(texts))

        async def Chat(self, requests: Any, context: Any) -> AsyncIterator[Any]:
            async for request in requests:
                if request.text == "end":
                    return
                yield request

    return Servicer()


def readers() -> list[asyncio.Task[Any]]:
    """Returns the tasks in which grpc.aio reads requests."""
    return [task for task in asyncio.all_tasks() if "request_iterator" in repr(task)]


@pytest.fixture
async def factory() -> AsyncIterator[ChannelFactory]:
    made = ChannelFactory(ChannelOptions(first_pause_s=0.02, max_attempts=6))
    yield made
    await made.close()


@pytest.fixture
async def refusing(start: Any, echo: Any) -> GrpcServer:
    server: GrpcServer = await start(servicer(echo), clock=OffsetClock(REFUSED_S))
    return server


@pytest.fixture
async def stub(start: Any, echo: Any, refusing: GrpcServer, factory: ChannelFactory) -> Any:
    """A stub to one replica that answers and two that refuse."""
    others = [
        await start(servicer(echo)),
        await start(servicer(echo), clock=OffsetClock(REFUSED_S)),
    ]
    return stub_to(targets([refusing, *others]), factory, echo)


async def test_slowly_arriving_requests_are_replayed(
    echo: Any, keys: Any, stub: Any, refusing: GrpcServer
) -> None:
    texts = [str(number) for number in range(20)]

    async def add_slowly(requests: RequestStream[Any]) -> None:
        for text in texts:
            requests.add(echo.pb.Note(text=text))
            await asyncio.sleep(0.003)
        requests.close()

    with keys.signed_in():
        for _ in range(4):
            requests: RequestStream[Any] = RequestStream()
            adding = asyncio.create_task(add_slowly(requests))
            assert [response.text async for response in stub.Chat(requests)] == texts
            await adding
            # The requests can be read again.
            call = stub.Chat(requests)
            responses = [await call.read() for _ in texts]
            assert [response.text for response in responses] == texts
            assert await call.read() is grpc.aio.EOF
            assert await call.code() is grpc.StatusCode.OK
    assert refusals(refusing)


async def test_a_bidirectional_stream_continues_after_a_refusal(
    echo: Any, keys: Any, stub: Any, refusing: GrpcServer
) -> None:
    with keys.signed_in():
        for _ in range(5):
            requests: RequestStream[Any] = RequestStream()
            call = stub.Chat(requests)
            for text in "abc":
                requests.add(echo.pb.Note(text=text))
                assert (await call.read()).text == text
            requests.add(echo.pb.Note(text="end"))
            assert await call.read() is grpc.aio.EOF
            requests.close()
    assert refusals(refusing)


async def test_no_task_waits_for_requests_after_the_end_of_a_call(
    start: Any, echo: Any, keys: Any, factory: ChannelFactory, refusing: GrpcServer
) -> None:
    class Hasty(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Chat(self, requests: Any, context: Any) -> AsyncIterator[Any]:
            yield await anext(aiter(requests))

    answering = await start(Hasty())
    both = stub_to(targets([refusing, answering]), factory, echo)
    none = stub_to(refusing.address, factory, echo)
    with keys.signed_in():
        calls = []
        for stub in (both, both, both, none):
            # The stream of requests stays open.
            requests = RequestStream(echo.pb.Note(text="a"))
            call = stub.Chat(requests)
            calls.append(call)
            try:
                assert (await call.read()).text == "a"
                await call.code()
            except UnavailableError:
                assert stub is none
            requests.close()
        await eventually(lambda: not readers())
    assert all(call.done() for call in calls)
    assert refusals(refusing)


@pytest.mark.parametrize("how", ["cancel", "cancel the reader", "drop"])
async def test_call_can_be_cancelled_between_two_attempts(
    echo: Any, keys: Any, refusing: GrpcServer, how: str
) -> None:
    factory = ChannelFactory(ChannelOptions(first_pause_s=15, max_attempts=20))
    try:
        stub = stub_to(refusing.address, factory, echo)
        with keys.signed_in():
            requests = RequestStream(echo.pb.Note(text="a"))
            call = stub.Chat(requests)
            if how == "drop":
                await eventually(lambda: bool(refusals(refusing)))
            else:
                ended: list[bool] = []
                call.add_done_callback(lambda _: ended.append(True))
                reading = asyncio.ensure_future(call.read())
                await eventually(lambda: bool(refusals(refusing)))
                # The pause is long.
                await asyncio.sleep(0.1)
                assert not call.done()
                assert not ended
                (call if how == "cancel" else reading).cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reading
                assert call.done()
                assert call.cancelled()
                assert ended == [True]
                del reading
            del call
            gc.collect()
            requests.close()
            await eventually(lambda: not readers())
            await check_refusals(refusing, 1)
    finally:
        await factory.close()


async def test_done_callback_is_called_once_after_the_last_attempt(
    echo: Any, keys: Any, stub: Any, refusing: GrpcServer
) -> None:
    with keys.signed_in():
        for _ in range(6):
            ended: list[Any] = []
            requests = RequestStream(echo.pb.Note(text="a"))
            requests.close()
            call = stub.Chat(requests)
            call.add_done_callback(ended.append)
            assert len([response async for response in call]) == 1
            assert ended == [call]
            assert await call.code() is grpc.StatusCode.OK
            assert SERVER_TIME_KEY in dict(await call.trailing_metadata())
            # Like calls of grpc.aio.
            call.add_done_callback(ended.append)
            assert ended == [call, call]
    assert refusals(refusing)


async def test_attempts_end_with_the_deadline_of_the_call(echo: Any, keys: Any, stub: Any) -> None:
    with keys.signed_in():
        # Connects to the replicas first, which takes longer than the deadline when the machine is
        # busy.
        requests: RequestStream[Any] = RequestStream(echo.pb.Note(text="end"))
        assert await stub.Chat(requests).read() is grpc.aio.EOF
        requests.close()

        async def call_until_deadline() -> None:
            requests: RequestStream[Any] = RequestStream()
            # Time enough for the attempts that are refused.
            call = stub.Chat(requests, timeout=3)
            with pytest.raises(DeadlineExceededError):
                await call.read()
            requests.close()

        await asyncio.gather(*(call_until_deadline() for _ in range(3)))
        await eventually(lambda: not readers())


async def test_calls_that_are_written_to_are_attempted_once(
    echo: Any, keys: Any, factory: ChannelFactory, refusing: GrpcServer
) -> None:
    stub = stub_to(refusing.address, factory, echo)
    with keys.signed_in():
        for method in ("Sum", "Chat"):
            call = getattr(stub, method)()
            with pytest.raises(UnavailableError) as raised:
                await (call if method == "Sum" else call.read())
            assert raised.value.reason is Reason.INTERNAL_TOKEN_REFUSED
    await check_refusals(refusing, 2)
