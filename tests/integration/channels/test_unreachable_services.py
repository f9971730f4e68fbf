"""Calls to a service without a connection: before it starts, while it restarts."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing
from typing import Any

import pytest

from cut_proxy import CutProxy
from integration.channels.conftest import stub_to
from loop_time import put_forward
from name_server import NameServer
from polling import eventually
from strata.protocol.errors import DeadlineExceededError, Reason, UnavailableError
from strata.shared.channels import ChannelFactory, ChannelOptions
from strata.standalone.ports import pick_port
from tcp_relay import TcpRelay

METHODS = ("Echo", "Replace", "Change", "Count", "Sum", "Chat")


class Effects:
    """A servicer with methods of every shape that records the texts of its calls."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.seconds = 0.0

    def servicer(self, echo: Any) -> Any:
        effects = self

        class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
            async def Echo(self, request: Any, context: Any) -> Any:
                effects.texts.append(request.text)
                await asyncio.sleep(effects.seconds)
                return request

            async def Replace(self, request: Any, context: Any) -> Any:
                return await self.Echo(request, context)

            async def Change(self, request: Any, context: Any) -> Any:
                return await self.Echo(request, context)

            async def Count(self, request: Any, context: Any) -> AsyncIterator[Any]:
                yield await self.Echo(request, context)

            async def Sum(self, requests: Any, context: Any) -> Any:
                return [await self.Echo(request, context) async for request in requests][-1]

            async def Chat(self, requests: Any, context: Any) -> AsyncIterator[Any]:
                async for request in requests:
                    yield await self.Echo(request, context)

        return Servicer()


@pytest.fixture
async def factory() -> AsyncIterator[ChannelFactory]:
    made = ChannelFactory(ChannelOptions(away_s=1.0, local_subchannels=True))
    yield made
    await made.close()


@pytest.fixture
async def patient() -> AsyncIterator[ChannelFactory]:
    """Channels with the timeouts of services."""
    made = ChannelFactory(ChannelOptions(renew_s=0.5))
    yield made
    await made.close()


async def answer(stub: Any, method: str, note: Any, **options: Any) -> Any:
    """Calls a method of any shape; returns its first response."""

    async def requests() -> AsyncIterator[Any]:
        yield note

    call = getattr(stub, method)(requests() if method in ("Sum", "Chat") else note, **options)
    return await (call.read() if method in ("Count", "Chat") else call)


@pytest.mark.parametrize("method", METHODS)
async def test_call_of_every_shape_waits_for_a_service_that_starts(
    start: Any, echo: Any, keys: Any, patient: ChannelFactory, method: str
) -> None:
    effects, port = Effects(), pick_port()
    stub = stub_to(f"127.0.0.1:{port}", patient, echo)
    with keys.signed_in():
        call = asyncio.create_task(answer(stub, method, echo.pb.Note(text="a")))
        # Longer than a few attempts.
        await asyncio.sleep(2)
        assert not call.done()
        await start(effects.servicer(echo), port=port)
        assert (await call).text == "a"
    assert effects.texts == ["a"]


@pytest.mark.parametrize("method", METHODS)
async def test_call_to_a_service_that_stays_unreachable_ends_unavailable(
    echo: Any,
    keys: Any,
    factory: ChannelFactory,
    method: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stub = stub_to("127.0.0.1:1", factory, echo)
    # A stream of requests may have got its connection at the moment at which it was ended.
    perhaps_sent = method in ("Sum", "Chat")
    with keys.signed_in():
        call = asyncio.ensure_future(answer(stub, method, echo.pb.Note(), timeout=30.0))
        if not perhaps_sent:
            await eventually(lambda: "call is repeated" in caplog.text)
            put_forward(30)
        with pytest.raises(UnavailableError) as raised:
            await call
    assert raised.value.reason is Reason.DEPENDENCY_UNAVAILABLE
    assert "127.0.0.1" not in raised.value.message
    assert (raised.value.unsent, raised.value.lost) == (not perhaps_sent, perhaps_sent)


async def test_a_stream_with_a_connection_has_no_connection_timeout(
    start: Any, echo: Any, keys: Any, factory: ChannelFactory
) -> None:
    effects = Effects()
    effects.seconds = 2.0
    stub = stub_to((await start(effects.servicer(echo))).address, factory, echo)
    with keys.signed_in():
        answers = [
            answer(stub, method, echo.pb.Note(text=method)) for method in ("Count", "Sum", "Chat")
        ]
        assert [response.text for response in await asyncio.gather(*answers)] == [
            "Count",
            "Sum",
            "Chat",
        ]


@pytest.mark.parametrize("method", ["Echo", "Change"])
async def test_cancelling_a_call_that_waits_for_its_service_ends_it(
    start: Any, echo: Any, keys: Any, patient: ChannelFactory, method: str
) -> None:
    effects, port = Effects(), pick_port()
    stub = stub_to(f"127.0.0.1:{port}", patient, echo)
    with keys.signed_in():
        calls = [getattr(stub, method)(echo.pb.Note()) for _ in range(2)]
        tasks = [asyncio.ensure_future(call) for call in calls]
        await asyncio.sleep(1)
        calls[0].cancel()
        tasks[1].cancel()
        for task in tasks:
            with pytest.raises(asyncio.CancelledError):
                await task
        assert calls[0].cancelled()
        assert calls[0].done()
        await start(effects.servicer(echo), port=port)
        assert (await stub.Echo(echo.pb.Note(text="later"))).text == "later"
    assert effects.texts == ["later"]


@pytest.mark.parametrize("method", ["Echo", "Replace"])
async def test_repeatable_call_whose_answer_is_lost_waits_for_the_service_to_return(
    start: Any, echo: Any, keys: Any, patient: ChannelFactory, method: str
) -> None:
    effects = Effects()
    server = await start(effects.servicer(echo))
    async with CutProxy(server.address) as proxy:
        stub = stub_to(proxy.address, patient, echo)
        proxy.mode, proxy.after_loss = "lose", "refuse"
        with keys.signed_in():
            call = asyncio.ensure_future(getattr(stub, method)(echo.pb.Note(text="a" * 100)))
            await asyncio.sleep(2)
            assert not call.done()
            proxy.mode = "pass"
            assert (await call).text == "a" * 100
    assert len(effects.texts) == 2


@pytest.mark.parametrize("method", ["Echo", "Replace"])
async def test_a_repeatable_call_succeeds_after_several_lost_answers(
    start: Any, echo: Any, keys: Any, patient: ChannelFactory, method: str
) -> None:
    effects = Effects()
    server = await start(effects.servicer(echo))
    async with CutProxy(server.address) as proxy:
        stub = stub_to(proxy.address, patient, echo)
        proxy.mode, proxy.after_loss = "lose", "lose"
        with keys.signed_in():
            call = asyncio.ensure_future(getattr(stub, method)(echo.pb.Note(text="a" * 100)))
            # More than `max_attempts`, which limits other causes.
            while proxy.lost < 6:
                assert not call.done()
                await asyncio.sleep(0.01)
            proxy.mode = "pass"
            assert (await call).text == "a" * 100


class Refusing:
    """A servicer that answers UNAVAILABLE a number of times."""

    def __init__(self, times: int, reason: Reason) -> None:
        self.times, self.reason = times, reason
        self.calls = 0

    def servicer(self, echo: Any) -> Any:
        refusing = self

        class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
            async def Echo(self, request: Any, context: Any) -> Any:
                refusing.calls += 1
                if refusing.calls <= refusing.times:
                    raise UnavailableError("Not now.", reason=refusing.reason)
                return request

            async def Change(self, request: Any, context: Any) -> Any:
                return await self.Echo(request, context)

        return Servicer()


async def test_repeatable_call_waits_for_the_end_of_a_server_that_stops(
    start: Any, echo: Any, keys: Any, patient: ChannelFactory
) -> None:
    refusing = Refusing(6, Reason.SHUTTING_DOWN)
    stub = stub_to((await start(refusing.servicer(echo))).address, patient, echo)
    with keys.signed_in():
        assert (await stub.Echo(echo.pb.Note(text="a"))).text == "a"
    assert refusing.calls == 7


@pytest.mark.parametrize(
    ("method", "reason", "calls"),
    [
        ("Echo", Reason.DEPENDENCY_UNAVAILABLE, 4),
        ("Change", Reason.DEPENDENCY_UNAVAILABLE, 1),
        ("Change", Reason.SHUTTING_DOWN, 1),
    ],
)
async def test_unavailable_answers_are_retried_a_limited_number_of_times(
    start: Any,
    echo: Any,
    keys: Any,
    patient: ChannelFactory,
    method: str,
    reason: Reason,
    calls: int,
) -> None:
    refusing = Refusing(100, reason)
    stub = stub_to((await start(refusing.servicer(echo))).address, patient, echo)
    with keys.signed_in(), pytest.raises(UnavailableError) as raised:
        await getattr(stub, method)(echo.pb.Note())
    assert raised.value.reason is reason
    assert refusing.calls == calls


async def test_call_whose_answer_is_lost_is_not_repeated_unless_it_is_repeatable(
    start: Any, echo: Any, keys: Any, patient: ChannelFactory
) -> None:
    effects = Effects()
    server = await start(effects.servicer(echo))
    async with CutProxy(server.address) as proxy:
        stub = stub_to(proxy.address, patient, echo)
        proxy.mode = "lose"
        with keys.signed_in(), pytest.raises(UnavailableError) as raised:
            await stub.Change(echo.pb.Note(text="a" * 100))
    assert raised.value.lost
    assert not raised.value.unsent
    assert len(effects.texts) == 1


async def test_outcome_is_unknown_if_any_attempt_was_sent(
    start: Any, echo: Any, keys: Any, factory: ChannelFactory
) -> None:
    server = await start(Effects().servicer(echo))
    async with CutProxy(server.address) as proxy:
        stub = stub_to(proxy.address, factory, echo)
        proxy.mode, proxy.after_loss = "lose", "refuse"
        with keys.signed_in(), pytest.raises(UnavailableError) as raised:
            await stub.Replace(echo.pb.Note(text="a" * 100), timeout=2.0)
    # The last attempts had no connection.
    assert raised.value.lost
    assert not raised.value.unsent


@pytest.mark.parametrize("peer", ["echo", ""])
async def test_connection_over_a_slow_network_is_waited_for(
    start: Any, echo: Any, keys: Any, patient: ChannelFactory, peer: str
) -> None:
    server = await start(Effects().servicer(echo))
    services = echo.pb.DESCRIPTOR.services_by_name.values()
    async with TcpRelay(server.address, delay_s=0.5) as relay:
        channel = patient.channel(relay.address, services, peer=peer)
        with keys.signed_in():
            note = echo.pb.Note(text="a")
            assert (await echo.pb_grpc.EchoServiceStub(channel).Change(note)).text == "a"


@pytest.mark.parametrize("method", METHODS)
async def test_a_name_without_an_address_is_resolved_again(
    start: Any, echo: Any, keys: Any, patient: ChannelFactory, method: str
) -> None:
    names, port = NameServer(), pick_port()
    await names.start()
    try:
        stub = stub_to(f"dns://{names.address}/replicas.test:{port}", patient, echo)
        await start(Effects().servicer(echo), port=port)
        with keys.signed_in():
            call = asyncio.create_task(answer(stub, method, echo.pb.Note(text="a")))
            await asyncio.sleep(2)
            assert not call.done()
            names.addresses = ["127.0.0.1"]
            assert (await call).text == "a"
    finally:
        names.stop()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["refuses", "silent"])
async def test_the_first_call_is_sent_to_the_address_that_answers(
    start: Any, echo: Any, keys: Any, patient: ChannelFactory, method: str, kind: str
) -> None:
    port = pick_port()
    names = NameServer()
    await names.start()
    with socket.socket() as silent:
        silent.bind(("127.0.0.2", port))
        if kind == "silent":
            # The kernel accepts connections; no process reads them or sends HTTP/2 settings.
            silent.listen()
        names.addresses = ["127.0.0.2", "127.0.0.1"]
        await start(Effects().servicer(echo), port=port)
        stub = stub_to(f"dns://{names.address}/replicas.test:{port}", patient, echo)
        try:
            with keys.signed_in():
                for _ in range(10):
                    assert (await answer(stub, method, echo.pb.Note(text="a"))).text == "a"
        finally:
            names.stop()


@pytest.mark.parametrize("method", METHODS)
async def test_call_to_a_peer_that_never_sends_settings_ends_by_its_deadline(
    echo: Any, keys: Any, factory: ChannelFactory, method: str
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        stub = stub_to(f"127.0.0.1:{silent.getsockname()[1]}", factory, echo)
        with keys.signed_in(), pytest.raises((UnavailableError, DeadlineExceededError)):
            await answer(stub, method, echo.pb.Note(), timeout=2.0)


class HalfPeer:
    """An HTTP/2 server that ends streams before a method is called.

    Args:
        ending: How each of the first calls ends: "refuse" (REFUSED_STREAM) or "go away" (GOAWAY
            with no stream processed). Later connections go to a server.
        server: Address of the server.
    """

    def __init__(self, ending: str, server: str) -> None:
        self.ending = ending
        self._host, _, port = server.rpartition(":")
        self._port = int(port)
        self.ended = 0

    async def start(self, stack: AsyncExitStack) -> str:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        stack.callback(server.close)
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Also if the server cannot be reached any more, or the test ends meanwhile.
        with closing(writer):
            if self.ended:
                there_reader, there = await asyncio.open_connection(self._host, self._port)
                await asyncio.gather(_copy(reader, there), _copy(there_reader, writer))
                return
            await reader.readexactly(24)
            writer.write(_frame(_SETTINGS))
            while not self.ended:
                head = await reader.readexactly(9)
                await reader.readexactly(int.from_bytes(head[:3]))
                if head[3] == _HEADERS:
                    self.ended += 1
                    stream = int.from_bytes(head[5:])
                    if self.ending == "refuse":
                        writer.write(_frame(_RST_STREAM, (7).to_bytes(4), stream))
                    writer.write(_frame(_GOAWAY, bytes(8)))
            await writer.drain()


_HEADERS, _RST_STREAM, _SETTINGS, _GOAWAY = 1, 3, 4, 7


def _frame(kind: int, payload: bytes = b"", stream: int = 0) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, 0]) + stream.to_bytes(4) + payload


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with closing(sink):
        while data := await source.read(1 << 16):
            sink.write(data)


@pytest.mark.parametrize("method", ["Echo", "Replace", "Change", "Count"])
@pytest.mark.parametrize("ending", ["refuse", "go away"])
async def test_a_call_refused_before_processing_is_sent_again(
    start: Any, echo: Any, keys: Any, patient: ChannelFactory, method: str, ending: str
) -> None:
    effects = Effects()
    server = await start(effects.servicer(echo))
    async with AsyncExitStack() as stack:
        peer = HalfPeer(ending, server.address)
        stub = stub_to(await peer.start(stack), patient, echo)
        with keys.signed_in():
            assert (await answer(stub, method, echo.pb.Note(text="a"))).text == "a"
    assert (peer.ended, effects.texts) == (1, ["a"])
