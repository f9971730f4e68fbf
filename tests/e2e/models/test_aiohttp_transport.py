"""The transport of model calls: what servers, networks and proxies may do to it, for both SDKs."""

from __future__ import annotations

import asyncio
import gc
import gzip
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

import anthropic
import httpx2
import openai
import pytest
import uvloop

from certificates import self_signed
from doubles.bench import Bench, collect, request
from doubles.http_server import HttpRequest, HttpResponse, HttpServer
from doubles.script import say
from polling import settle
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind
from strata.agent_loop.models.response_limits import bounded_client
from strata.shared.settings import MIB
from strata.shared.web.system_certificates import system_ssl_context

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n"
HI = HEAD + b"content-length: 2\r\n\r\nhi"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"

_CONNECTIONS = 10

Make = Callable[..., httpx2.AsyncClient]


class RawServer:
    """Answers requests with given bytes.

    Args:
        answers: For one request each; the last one for all others as well.
        closes: Whether the connection is closed after each answer.
        without_body: Whether requests are answered before their body is read.
        tls: Certificate and key.

    Attributes:
        received: The requests of each connection.
        left: Set once a client has closed a connection.
    """

    def __init__(
        self,
        *answers: bytes,
        closes: bool = False,
        without_body: bool = False,
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self._answers = list(answers)
        self._closes, self._without_body, self._tls = closes, without_body, tls
        self._host = host
        self._writers: list[asyncio.StreamWriter] = []
        self.received: list[list[bytes]] = []
        self.left = asyncio.Event()
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self._host, 0, ssl=self._tls)
        address = self._server.sockets[0].getsockname()
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        self.url = f"http{'s' if self._tls else ''}://{host}:{address[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        # Connections that were accepted just now have no writer yet, and aborted ones are closed
        # in the next pass of the event loop.
        for _pass in range(5):
            await asyncio.sleep(0)
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()
        await asyncio.sleep(0)

    def close_connections(self) -> None:
        """Closes all connections, as a server does with idle ones."""
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        received: list[bytes] = []
        self.received.append(received)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                _, length, after = head.lower().partition(b"content-length:")
                size = int(after.split(b"\r\n")[0]) if length and not self._without_body else 0
                received.append(head + await reader.readexactly(size))
                answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
                writer.write(answer)
                await writer.drain()
                if self._closes:
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left.set()
        finally:
            writer.close()


@pytest.fixture(
    params=[
        pytest.param(openai.DefaultAsyncHttpxClient, id="openai"),
        pytest.param(anthropic.DefaultAsyncHttpxClient, id="anthropic"),
    ]
)
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


@pytest.fixture
async def client(make: Make) -> AsyncIterator[httpx2.AsyncClient]:
    async with bounded_client(make) as opened:
        yield opened


async def error_of(client: httpx2.AsyncClient, url: str, **timeouts: float) -> Exception:
    with pytest.raises(httpx2.RequestError) as caught:
        await client.post(url, content=b"{}", timeout=httpx2.Timeout(20, **timeouts))
    assert caught.value.request.method == "POST"
    return caught.value


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        pytest.param(b"", httpx2.RemoteProtocolError, "without a response", id="nothing"),
        pytest.param(HEAD, httpx2.RemoteProtocolError, "without a response", id="half a header"),
        pytest.param(b"SSH-2.0-x\r\n\r\n", httpx2.RemoteProtocolError, "not valid", id="no HTTP"),
        pytest.param(HI[:-1], httpx2.RemoteProtocolError, "before the end", id="cut"),
        pytest.param(
            CHUNKED + b"5\r\nhi", httpx2.RemoteProtocolError, "before the end", id="cut chunk"
        ),
        pytest.param(
            CHUNKED + b"2\r\nhi\r\n", httpx2.RemoteProtocolError, "before the end", id="no end"
        ),
        pytest.param(
            CHUNKED + b"2\r\nhi\r\nzz\r\n", httpx2.RemoteProtocolError, "not valid", id="bad chunk"
        ),
        pytest.param(
            HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\nhi!",
            httpx2.RemoteProtocolError,
            "not valid",
            id="two lengths",
        ),
        pytest.param(
            HEAD + b"x: " + b"y" * MIB, httpx2.RemoteProtocolError, "not valid", id="endless header"
        ),
        pytest.param(
            HEAD + b"x: y\r\n" * 100_000, httpx2.RemoteProtocolError, "not valid", id="many headers"
        ),
        pytest.param(
            HEAD + b"content-encoding: gzip\r\ncontent-length: 2\r\n\r\nhi",
            httpx2.DecodingError,
            "decompressing",
            id="no gzip",
        ),
    ],
)
async def test_a_response_that_is_broken_is_an_error_of_the_protocol(
    client: httpx2.AsyncClient, answer: bytes, kind: type[Exception], words: str
) -> None:
    async with RawServer(answer, closes=True) as server:
        error = await error_of(client, server.url)
        assert type(error) is kind
        assert words in str(error)
        assert "\n" not in str(error)
        # aiohttp would repeat other methods.
        assert sum(map(len, server.received)) == 1


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(HI, id="length"),
        pytest.param(HEAD + b"connection: close\r\n\r\nhi", id="until the connection closes"),
        pytest.param(b"HTTP/1.0 200 OK\r\n\r\nhi", id="HTTP/1.0"),
        pytest.param(b"HTTP/1.1 200\r\ncontent-length: 2\r\n\r\nhi", id="no reason"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" + HI, id="continue"),
        pytest.param(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + HI, id="early hints"),
        pytest.param(
            CHUNKED + b"1;a=b\r\nh\r\n1\r\ni\r\n0\r\nx: y\r\n\r\n", id="extensions and trailers"
        ),
        pytest.param(
            HEAD + b"x: \xe9" + b"y" * 20_000 + b"\r\ncontent-length: 2\r\n\r\nhi", id="long header"
        ),
        pytest.param(
            HEAD
            + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(gzip.compress(b"hi"))
            + gzip.compress(b"hi"),
            id="gzip",
        ),
    ],
)
async def test_every_form_of_response_is_read(client: httpx2.AsyncClient, answer: bytes) -> None:
    async with RawServer(answer, closes=True) as server:
        response = await client.post(server.url, content=b"{}")
    assert (response.status_code, response.text) == (200, "hi")


async def test_servers_that_cannot_be_reached_are_errors_of_the_connection(
    client: httpx2.AsyncClient, tmp_path: Path
) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        refused = await error_of(client, f"http://127.0.0.1:{deaf.getsockname()[1]}")
    assert type(refused) is httpx2.ConnectError
    # Addresses may be those of an internal network.
    assert str(refused) == "Connection refused"

    def unknown(*_: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with patch.object(socket, "getaddrinfo", unknown):
        nameless = await error_of(client, "http://nothing.example:80")
    assert type(nameless) is httpx2.ConnectError
    assert "Name or service not known" in str(nameless)

    invalid = await error_of(client, f"http://{'a' * 70}.example")
    assert type(invalid) is httpx2.ConnectError

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*self_signed(tmp_path, ["other.example"], "127.0.0.1"))
    async with RawServer(HI, tls=tls) as server:
        unverified = await error_of(client, server.url)
    assert type(unverified) is httpx2.ConnectError
    assert "CERTIFICATE_VERIFY_FAILED" in str(unverified)

    async with RawServer(b"") as server:
        no_tls = await error_of(client, server.url.replace("http:", "https:"), connect=0.05)
    assert type(no_tls) is httpx2.ConnectTimeout


async def test_a_server_with_a_trusted_certificate_is_reached(make: Make, tmp_path: Path) -> None:
    pem, key = self_signed(tmp_path, ["localhost"], "127.0.0.1")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pem, key)
    tls.set_alpn_protocols(["h2", "http/1.1"])
    chosen: list[str | None] = []
    tls.sni_callback = lambda connection, name, _: chosen.append(name)
    trusting = ssl.create_default_context(cafile=str(pem))
    with patch("strata.agent_loop.models.response_limits.system_ssl_context", lambda: trusting):
        client = bounded_client(make)
    async with client, RawServer(HI, tls=tls) as server:
        port = server.url.rpartition(":")[2]
        for _ in range(2):
            response = await client.post(f"https://localhost:{port}/x", content=b"{}")
            assert response.text == "hi"
        assert len(server.received) == 1
        assert chosen == ["localhost"]


async def test_reads_and_name_lookups_have_their_time_limits(client: httpx2.AsyncClient) -> None:
    async with RawServer(b"") as server:
        silent = await error_of(client, server.url, read=0.05)
    async with RawServer(CHUNKED + b"2\r\nhi\r\n") as server:
        stalled = await error_of(client, server.url, read=0.05)
    assert (type(silent), type(stalled)) == (httpx2.ReadTimeout, httpx2.ReadTimeout)

    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    with patch.object(asyncio.get_running_loop(), "getaddrinfo", never):
        lost = await error_of(client, "http://model.example", connect=0.05)
    assert type(lost) is httpx2.ConnectTimeout


async def test_a_name_is_looked_up_for_each_connection(client: httpx2.AsyncClient) -> None:
    loop, names = asyncio.get_running_loop(), []
    real = loop.getaddrinfo

    async def counted(host: Any, port: Any, **more: Any) -> Any:
        names.append(host)
        return await real("127.0.0.1" if host == "model.example" else host, port, **more)

    async with RawServer(HI, closes=True) as server:
        url = server.url.replace("127.0.0.1", "model.example")
        with patch.object(loop, "getaddrinfo", counted):
            for _ in range(3):
                assert (await client.post(url, content=b"{}")).text == "hi"
    assert names.count("model.example") == 3


async def test_connections_are_used_again_and_those_that_the_server_closed_are_not(
    client: httpx2.AsyncClient,
) -> None:
    async with RawServer(HI, CHUNKED + b"2\r\nhi\r\n0\r\n\r\n", HI) as server:
        for _ in range(3):
            assert (await client.post(server.url, content=b"{}")).text == "hi"
        assert list(map(len, server.received)) == [3]
        server.close_connections()
        # The loop must have seen that it is closed.
        await settle()
        assert (await client.post(server.url, content=b"{}")).text == "hi"
        assert list(map(len, server.received)) == [3, 1]


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_connection_that_the_server_has_just_closed_is_not_used(
    make: Make, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    def serve(listening: socket.socket) -> None:
        for _ in range(_CONNECTIONS):
            accepted, _ = listening.accept()
            with accepted:
                accepted.recv(4096)
                # With the end of the connection in the same packet.
                accepted.send(HI, getattr(socket, "MSG_MORE", 0))

    async def ask() -> None:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            listening.settimeout(20)
            serving = asyncio.create_task(asyncio.to_thread(serve, listening))
            async with bounded_client(make) as client:
                for _ in range(_CONNECTIONS):
                    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
                    assert (await client.post(url, content=b"{}")).text == "hi"
            await serving

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(ask(), 60))


async def test_a_request_is_not_sent_twice_on_its_own(client: httpx2.AsyncClient) -> None:
    async with RawServer(HI, b"", closes=False) as server:
        await client.post(server.url, content=b"{}")
        sending = asyncio.create_task(error_of(client, server.url))
        while list(map(len, server.received)) != [2]:
            await asyncio.sleep(0.01)
        server.close_connections()
        error = await sending
        assert type(error) is httpx2.RemoteProtocolError
        assert list(map(len, server.received)) == [2]


async def test_bytes_after_a_response_are_not_taken_for_the_next_one(
    client: httpx2.AsyncClient,
) -> None:
    forged = HI.replace(b"hi", b"no")
    async with RawServer(HI + forged, HI) as server:
        texts = [(await client.post(server.url, content=b"{}")).text for _ in range(3)]
    assert texts == ["hi", "hi", "hi"]


async def test_a_response_that_is_left_closes_its_connection(client: httpx2.AsyncClient) -> None:
    async with RawServer(CHUNKED + b"2\r\nhi\r\n", HI) as server:
        async with client.stream("POST", server.url, content=b"{}") as response:
            assert await anext(response.aiter_raw()) == b"hi"
        async with asyncio.timeout(20):
            await server.left.wait()
        assert (await client.post(server.url, content=b"{}")).text == "hi"
        assert list(map(len, server.received)) == [1, 1]


async def test_cookies_are_neither_kept_nor_sent(client: httpx2.AsyncClient) -> None:
    with_cookie = HI.replace(b"\r\n\r\n", b"\r\nset-cookie: a=b\r\n\r\n")
    async with RawServer(with_cookie, HI) as server:
        for _ in range(2):
            await client.post(server.url, content=b"{}")
        assert not dict(client.cookies)
        assert b"cookie" not in b"".join(server.received[0]).lower()


async def test_the_client_follows_redirects_and_keeps_the_key_from_other_servers(
    client: httpx2.AsyncClient,
) -> None:
    async with RawServer(HI) as other:
        moved = b"HTTP/1.1 307 Moved\r\nlocation: %b/there\r\ncontent-length: 0\r\n\r\n"
        async with RawServer(moved % other.url.encode()) as server:
            headers = {"authorization": "Bearer key"}
            response = await client.post(server.url, content=b"{}", headers=headers)
            assert b"Bearer key" in server.received[0][0]
    assert [past.status_code for past in response.history] == [307]
    assert other.received[0][0].startswith(b"POST /there HTTP/1.1\r\n")
    assert b"Bearer key" not in other.received[0][0]


async def test_a_request_is_written_as_by_the_clients_own_transport(make: Make) -> None:
    paths = ("", "/v1/a%2Fb/%7e?x=%20y&z=\u00e9+1", "/v1//m:n/")
    written: list[list[str]] = []
    own = httpx2.AsyncHTTPTransport(verify=system_ssl_context())
    for opened in (bounded_client(make), make(transport=own)):
        async with opened as client, RawServer(HI) as server:
            url = server.url.replace("http://", "http://user:pass@")
            for path in paths:
                response = await client.post(url + path, content=b"{}", headers={"X-Key": "k"})
                assert response.text == "hi"
            await client.get(url)
            port = server.url.rpartition(":")[2]
            requests = [one.decode().replace(port, "PORT") for one in server.received[0]]
        written.append(["\n".join(sorted(one.lower().split("\r\n"))) for one in requests])
    assert written[0] == written[1]


async def test_an_address_of_ipv6_is_reached(client: httpx2.AsyncClient) -> None:
    try:
        async with RawServer(HI, host="::1") as server:
            assert (await client.post(server.url, content=b"{}")).text == "hi"
    except OSError:
        pytest.skip("the machine has no IPv6")


async def test_a_large_body_is_sent_whole(client: httpx2.AsyncClient) -> None:
    body = bytes(range(256)) * 12 * 1024
    async with RawServer(HI) as server:
        assert (await client.post(server.url, content=body)).text == "hi"
        head, _, sent = server.received[0][0].partition(b"\r\n\r\n")
    assert sent == body
    assert b"transfer-encoding" not in head.lower()


async def test_an_answer_that_comes_before_the_body_was_read_is_returned(
    client: httpx2.AsyncClient,
) -> None:
    refusal = HI.replace(b"200 OK", b"413 Too Large")
    async with RawServer(refusal, without_body=True) as server:
        async with asyncio.timeout(20):
            response = await client.post(server.url, content=b"x" * 4 * MIB)
    assert response.status_code == 413


async def test_a_header_cannot_end_early(client: httpx2.AsyncClient) -> None:
    async with RawServer(HI) as server:
        with pytest.raises(httpx2.LocalProtocolError):
            await client.post(server.url, content=b"{}", headers={"x": "a\r\nb: c"})
        assert not any(server.received)


def test_a_client_serves_one_event_loop_and_leaves_nothing_open(make: Make) -> None:
    async def once() -> None:
        async with bounded_client(make) as client, RawServer(HI) as server:
            assert (await client.post(server.url, content=b"{}")).text == "hi"
        with pytest.raises(RuntimeError, match="closed"):
            await client.post(server.url, content=b"{}")

    # A session or a connection that is left open is a warning, which is an error here.
    for _ in range(2):
        asyncio.run(once())
        gc.collect()


@asynccontextmanager
async def proxy() -> AsyncIterator[tuple[str, list[str]]]:
    targets: list[str] = []

    async def answer(asked: HttpRequest) -> HttpResponse:
        targets.append(asked.target)
        return HttpResponse(403, {"error": {"message": "not through here"}})

    async with HttpServer(answer) as server:
        yield server.url, targets


async def test_proxies_of_the_environment_are_used(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with proxy() as (url, targets):
        monkeypatch.setenv("HTTP_PROXY", url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with pytest.raises(ModelError, match="not through here"):
            await collect(bench.model(base_url="http://model.example/v1"), request())
        bench.server.script(say("Direct."))
        assert (await bench.ask())[1].text == "Direct."
    assert len(targets) == 1
    assert targets[0].startswith("http://model.example/v1/")


async def test_a_server_that_cannot_be_reached_is_named_without_its_address(bench: Bench) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/v1"
        with pytest.raises(ModelError) as caught:
            await collect(bench.model(base_url=url), request())
    assert caught.value.kind is ModelErrorKind.UNAVAILABLE
    assert caught.value.message == "The endpoint cannot be reached: Connection refused"


async def test_events_that_have_arrived_in_many_chunks_are_read_together(
    openai_bench: Bench,
) -> None:
    event = b'data: {"choices": [{"delta": {"content": "word "}}]}\n\n'
    end = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    chunks = [event] * 320 + [end, b""]
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    async with RawServer(CHUNKED.replace(b"text/plain", b"text/event-stream") + body) as server:
        events, reply = await collect(openai_bench.model(base_url=server.url), request())
    assert reply.text == "word " * 320
    # Of 32 events each, if they arrive at once.
    assert len(events) < 60
