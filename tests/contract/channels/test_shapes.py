"""All four shapes of RPC, both transports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest


@pytest.fixture
def servicer(echo: Any) -> Any:
    note = echo.pb.Note

    class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Echo(self, request: Any, context: Any) -> Any:
            return request

        async def Count(self, request: Any, context: Any) -> AsyncIterator[Any]:
            for number in range(request.number):
                yield note(number=number)

        async def Sum(self, requests: AsyncIterator[Any], context: Any) -> Any:
            return note(number=sum([request.number async for request in requests]))

        async def Chat(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            async for request in requests:
                yield note(text=request.text.upper())

    return Servicer()


async def test_a_unary_call_returns_the_response(
    serve: Any, servicer: Any, echo: Any, keys: Any
) -> None:
    served = await serve(servicer)
    with keys.signed_in():
        response = await served.stub.Echo(echo.pb.Note(text="grüße", number=-7))
    assert (response.text, response.number) == ("grüße", -7)


async def test_messages_are_copied_in_transit(serve: Any, echo: Any, keys: Any) -> None:
    seen: list[Any] = []

    class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Echo(self, request: Any, context: Any) -> Any:
            seen.append(request)
            request.text = "changed by the server"
            return request

    served = await serve(Servicer())
    request = echo.pb.Note(text="mine")
    with keys.signed_in():
        response = await served.stub.Echo(request)
    assert request.text == "mine"
    assert response is not seen[0]
    response.text = "changed by the client"
    assert seen[0].text == "changed by the server"


async def test_a_response_stream_is_iterated_to_its_end(
    serve: Any, servicer: Any, echo: Any, keys: Any
) -> None:
    served = await serve(servicer)
    with keys.signed_in():
        call = served.stub.Count(echo.pb.Note(number=500))
        numbers = [note.number async for note in call]
    assert numbers == list(range(500))
    assert await call.code() is grpc.StatusCode.OK


async def test_a_response_stream_can_be_read_one_by_one(
    serve: Any, servicer: Any, echo: Any, keys: Any
) -> None:
    served = await serve(servicer)
    with keys.signed_in():
        call = served.stub.Count(echo.pb.Note(number=2))
        assert (await call.read()).number == 0
        assert (await call.read()).number == 1
        assert await call.read() is grpc.aio.EOF


async def test_a_request_stream_can_be_an_iterator(
    serve: Any, servicer: Any, echo: Any, keys: Any
) -> None:
    async def requests() -> AsyncIterator[Any]:
        for number in range(200):
            yield echo.pb.Note(number=number)

    served = await serve(servicer)
    with keys.signed_in():
        assert (await served.stub.Sum(requests())).number == sum(range(200))
        assert (await served.stub.Sum(iter([echo.pb.Note(number=4)]))).number == 4


async def test_a_request_stream_can_be_written(
    serve: Any, servicer: Any, echo: Any, keys: Any
) -> None:
    served = await serve(servicer)
    with keys.signed_in():
        call = served.stub.Sum()
        await call.write(echo.pb.Note(number=40))
        await call.write(echo.pb.Note(number=2))
        await call.done_writing()
        assert (await call).number == 42
        assert (await call).number == 42


async def test_both_sides_stream_in_turns(serve: Any, servicer: Any, echo: Any, keys: Any) -> None:
    served = await serve(servicer)
    with keys.signed_in():
        call = served.stub.Chat()
        for text in ("one", "two"):
            await call.write(echo.pb.Note(text=text))
            assert (await call.read()).text == text.upper()
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


async def test_a_servicer_may_write_instead_of_yield(serve: Any, echo: Any, keys: Any) -> None:
    class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Chat(self, requests: Any, context: Any) -> None:
            while (request := await context.read()) is not grpc.aio.EOF:
                await context.write(echo.pb.Note(number=request.number + 1))

    served = await serve(Servicer())
    with keys.signed_in():
        notes = iter([echo.pb.Note(number=1), echo.pb.Note(number=5)])
        assert [note.number async for note in served.stub.Chat(notes)] == [2, 6]


async def test_without_serializers_bytes_are_passed_unchanged(
    serve: Any, servicer: Any, echo: Any, keys: Any
) -> None:
    served = await serve(servicer)
    raw = echo.pb.Note(text="opaque", data=b"\xff\x00").SerializeToString()
    path = "/strata.testing.echo.v1.EchoService/"
    with keys.signed_in():
        assert await served.channel.unary_unary(f"{path}Echo")(raw) == raw
        count = served.channel.unary_stream(f"{path}Count")
        notes = [note async for note in count(echo.pb.Note(number=2).SerializeToString())]
        assert notes == [b"", b"\x10\x01"]
        # gRPC's wire format does not distinguish the shapes: a proxy may treat every method as a
        # stream.
        everything = served.channel.stream_stream(f"{path}Echo")
        assert [raw_note async for raw_note in everything(iter([raw]))] == [raw]


async def test_many_calls_at_once_are_kept_apart(
    serve: Any, servicer: Any, echo: Any, keys: Any
) -> None:
    served = await serve(servicer)
    with keys.signed_in():
        notes = await asyncio.gather(
            *(served.stub.Echo(echo.pb.Note(number=number)) for number in range(150))
        )
    assert [note.number for note in notes] == list(range(150))


async def test_a_slow_reader_blocks_the_writer(serve: Any, echo: Any, keys: Any) -> None:
    written = 0

    class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Count(self, request: Any, context: Any) -> AsyncIterator[Any]:
            nonlocal written
            for number in range(1, 1_001):
                written = number
                yield echo.pb.Note(data=bytes(100_000))

    served = await serve(Servicer())
    with keys.signed_in():
        call = served.stub.Count(echo.pb.Note())
        await call.read()
        last = -1
        while last != written:
            last = written
            await asyncio.sleep(0.1)
        # The server offers 100 MB. Only a small part of that can be sent ahead of the reader: the
        # window of HTTP/2, which gRPC widens on a fast connection, and the buffers of the sockets.
        assert written < 500
        while await call.read() is not grpc.aio.EOF:
            pass
    assert written == 1_000


async def test_a_slow_server_blocks_the_client(serve: Any, echo: Any, keys: Any) -> None:
    go = asyncio.Event()

    class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Sum(self, requests: Any, context: Any) -> Any:
            await go.wait()
            return echo.pb.Note(number=sum([len(request.data) async for request in requests]))

    served = await serve(Servicer())
    sent = 0

    async def requests() -> AsyncIterator[Any]:
        nonlocal sent
        for number in range(1, 1_001):
            sent = number
            yield echo.pb.Note(data=bytes(100_000))

    with keys.signed_in():
        call = served.stub.Sum(requests())
        last = -1
        while last != sent:
            last = sent
            await asyncio.sleep(0.1)
        assert sent < 500
        go.set()
        assert (await call).number == 1_000 * 100_000
