"""A server that sends without end fills no memory, in any dialect."""

import gzip
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from unittest.mock import patch

import pytest

from doubles.bench import Bench, collect, request
from doubles.http_server import Handler, HttpRequest, HttpResponse, HttpServer
from doubles.script import say
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind
from strata.agent_loop.models import response_limits
from strata.shared.settings import KIB

_LIMIT = 64 * KIB
# More than the buffers of the sockets between a server and a client hold.
_PIECES = 400
_PIECE = 64 * KIB


@dataclass
class Endless:
    """Sends one body that is far larger than the limit.

    Attributes:
        status: Of the response.
        headers: Of the response, beside those of a stream of events.
        piece: What the body repeats.
        sent: How many pieces were sent.
    """

    status: int = 200
    headers: dict[str, str] | None = None
    piece: bytes = b"x" * _PIECE
    sent: int = 0

    async def __call__(self, _: HttpRequest) -> HttpResponse:
        return HttpResponse(self.status, headers=self.headers or {}, stream=self._body())

    async def _body(self) -> AsyncIterator[bytes]:
        yield b"data: "
        for _ in range(_PIECES):
            yield self.piece
            self.sent += 1


@pytest.fixture(autouse=True)
def small_limit() -> Iterator[None]:
    with patch.object(response_limits, "MAX_BYTES", _LIMIT):
        yield


async def failure(bench: Bench, handler: Handler) -> ModelError:
    async with HttpServer(handler) as server:
        url = f"{server.url}/v1" if bench.endpoint_type != "anthropic" else server.url
        with pytest.raises(ModelError) as caught:
            await collect(bench.model(base_url=url), request())
    return caught.value


@pytest.mark.parametrize(
    "piece",
    [pytest.param(b"x" * _PIECE, id="line"), pytest.param(b"x" * 1023 + b"\ndata: ", id="lines")],
)
async def test_an_event_without_end_is_not_read_further(bench: Bench, piece: bytes) -> None:
    endless = Endless(piece=piece * (_PIECE // len(piece)))
    error = await failure(bench, endless)
    assert error.kind is ModelErrorKind.CUT_OFF
    assert f"an event of more than {_LIMIT} bytes" in error.message
    assert endless.sent < _PIECES


async def test_the_body_of_an_error_is_not_read_further(bench: Bench) -> None:
    endless = Endless(status=400, headers={"content-type": "application/json"})
    error = await failure(bench, endless)
    assert error.kind is ModelErrorKind.UNAVAILABLE
    assert f"a response of more than {_LIMIT} bytes" in error.message
    assert endless.sent < _PIECES


@pytest.mark.parametrize(
    ("status", "kind"),
    [(200, ModelErrorKind.CUT_OFF), (400, ModelErrorKind.UNAVAILABLE)],
    ids=["stream", "error"],
)
async def test_a_short_compressed_response_is_not_decoded_without_end(
    bench: Bench, status: int, kind: ModelErrorKind
) -> None:
    content_type = "text/event-stream" if status == 200 else "application/json"

    async def body() -> AsyncIterator[bytes]:
        compressed = gzip.compress(b"data: " + b"x" * 20 * _LIMIT)
        assert len(compressed) < _LIMIT / 10
        yield compressed

    async def answer(_: HttpRequest) -> HttpResponse:
        headers = {"content-type": content_type, "content-encoding": "gzip"}
        return HttpResponse(status, headers=headers, stream=body())

    error = await failure(bench, answer)
    assert f"a response of more than {_LIMIT} bytes" in error.message
    assert error.kind is kind


async def test_a_long_stream_of_small_events_is_read_to_its_end(bench: Bench) -> None:
    text = "many words " * 800
    bench.server.script(replace(say(text), piece=11))
    _, reply = await bench.ask()
    assert reply.text == text
