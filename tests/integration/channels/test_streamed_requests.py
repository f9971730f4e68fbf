"""Streams of requests that one replica refuses and another one takes."""

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
from strata.shared.interceptors.replay import LIMIT_BYTES
from strata.shared.request_stream import RequestStream
from strata.shared.server import GrpcServer

# By a clock that differs so much every token is refused.
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
    """To a replica that answers and two that refuse."""
    others = [
        await start(servicer(echo)),
        await start(servicer(echo), clock=OffsetClock(REFUSED_S)),
    ]
    return stub_to(targets([refusing, *others]), factory, echo)


async def test_requests_that_come_slowly_are_replayed(
    echo: Any, keys: Any, stub: Any, refusing: GrpcServer
) -> None:
    note = echo.pb.Note

    async def requests() -> AsyncIterator[Any]:
        request = note()
        for number in range(20):
            # One message for all requests, as a caller may have it.
            request.text = str(number)
            yield request
            await asyncio.sleep(0.003)

    texts = [str(number) for number in range(20)]
    with keys.signed_in():
        for _ in range(4):
            assert (await stub.Sum(requests())).text == " ".join(texts)
            assert [response.text async for response in stub.Chat(requests())] == texts
            call = stub.Chat(note(text=text) for text in texts)
            responses = [await call.read() for _ in texts]
            assert [response.text for response in responses] == texts
            assert await call.read() is grpc.aio.EOF
            assert await call.code() is grpc.StatusCode.OK
    assert refusals(refusing)


async def test_conversation_continues_after_a_refusal(
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
    assert refusals(refusing)


@pytest.mark.parametrize("method", ["Sum", "Chat"])
async def test_call_with_more_requests_than_are_kept_is_not_repeated(
    echo: Any, keys: Any, factory: ChannelFactory, refusing: GrpcServer, method: str
) -> None:
    stub = stub_to(refusing.address, factory, echo)
    note = echo.pb.Note(data=bytes(LIMIT_BYTES))
    with keys.signed_in():
        call = getattr(stub, method)(iter([note]))
        with pytest.raises(UnavailableError) as raised:
            await (call if method == "Sum" else call.read())
    assert raised.value.reason is Reason.INTERNAL_TOKEN_REFUSED
    await check_refusals(refusing, 1)


@pytest.mark.parametrize("method", ["Sum", "Chat"])
async def test_no_task_waits_for_requests_after_the_end_of_a_call(
    start: Any, echo: Any, keys: Any, factory: ChannelFactory, refusing: GrpcServer, method: str
) -> None:
    class Hasty(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Sum(self, requests: Any, context: Any) -> Any:
            return await anext(aiter(requests))

        async def Chat(self, requests: Any, context: Any) -> AsyncIterator[Any]:
            yield await anext(aiter(requests))

    answering = await start(Hasty())
    both = stub_to(targets([refusing, answering]), factory, echo)
    none = stub_to(refusing.address, factory, echo)
    with keys.signed_in():
        calls = []
        for stub in (both, both, both, none):
            # More requests may come at any time.
            call = getattr(stub, method)(RequestStream(echo.pb.Note(text="a")))
            calls.append(call)
            try:
                response = await (call if method == "Sum" else call.read())
                assert response.text == "a"
                await call.code()
            except UnavailableError:
                assert stub is none
        await eventually(lambda: not readers())
    assert all(call.done() for call in calls)
    assert refusals(refusing)


@pytest.mark.parametrize("how", ["cancel", "cancel the reader", "drop"])
@pytest.mark.parametrize("method", ["Sum", "Chat"])
async def test_call_can_be_cancelled_between_two_attempts(
    echo: Any, keys: Any, refusing: GrpcServer, method: str, how: str
) -> None:
    factory = ChannelFactory(ChannelOptions(first_pause_s=600, max_attempts=20))
    try:
        stub = stub_to(refusing.address, factory, echo)
        with keys.signed_in():
            call = getattr(stub, method)(RequestStream(echo.pb.Note(text="a")))
            ended: list[bool] = []
            call.add_done_callback(lambda _: ended.append(True))
            if how == "drop":
                await eventually(lambda: bool(refusals(refusing)))
            else:
                reading = asyncio.ensure_future(call if method == "Sum" else call.read())
                await eventually(lambda: bool(refusals(refusing)))
                # The pause lasts long.
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
            await eventually(lambda: not readers())
            await check_refusals(refusing, 1)
    finally:
        await factory.close()


@pytest.mark.parametrize("method", ["Sum", "Chat"])
async def test_done_callback_is_called_once_after_the_last_attempt(
    echo: Any, keys: Any, stub: Any, refusing: GrpcServer, method: str
) -> None:
    with keys.signed_in():
        for _ in range(6):
            ended: list[Any] = []
            call = getattr(stub, method)(iter([echo.pb.Note(text="a")]))
            call.add_done_callback(ended.append)
            if method == "Sum":
                await call
            else:
                assert len([response async for response in call]) == 1
            assert ended == [call]
            assert await call.code() is grpc.StatusCode.OK
            assert SERVER_TIME_KEY in dict(await call.trailing_metadata())
            # As calls of grpc.aio do.
            call.add_done_callback(ended.append)
            assert ended == [call, call]
    assert refusals(refusing)


@pytest.mark.parametrize("method", ["Sum", "Chat"])
async def test_attempts_end_with_the_deadline_of_the_call(
    echo: Any, keys: Any, stub: Any, method: str
) -> None:
    with keys.signed_in():
        for _ in range(3):
            call = getattr(stub, method)(RequestStream(), timeout=0.3)
            with pytest.raises(DeadlineExceededError):
                await (call if method == "Sum" else call.read())
            await eventually(lambda: not readers())


async def test_error_of_the_iterator_cancels_the_call(echo: Any, keys: Any, stub: Any) -> None:
    async def requests() -> AsyncIterator[Any]:
        yield echo.pb.Note(text="a")
        await asyncio.sleep(0.05)
        raise LookupError("nothing there")

    with keys.signed_in():
        for _ in range(4):
            with pytest.raises(asyncio.CancelledError):
                await stub.Sum(requests())


async def test_calls_that_are_written_to_are_attempted_once(
    echo: Any, keys: Any, factory: ChannelFactory, refusing: GrpcServer
) -> None:
    stub = stub_to(refusing.address, factory, echo)
    with keys.signed_in():
        for method in ("Sum", "Chat"):
            call = getattr(stub, method)()
            with pytest.raises(UnavailableError):
                await (call if method == "Sum" else call.read())
    await check_refusals(refusing, 2)
