"""Limits the size of responses of model servers, for the HTTP clients of the SDKs.

The SDKs keep an event of a stream in memory until it ends, and the whole body of any other
response. Without a limit, one server that never ends an event would use up the memory of the
process, which serves all projects.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Self

import httpx2
from httpx2._decoders import ContentDecoder

from strata.agent_loop.models.aiohttp_transport import AiohttpTransport
from strata.shared.settings import MIB
from strata.shared.web.system_certificates import system_ssl_context

MAX_BYTES = 32 * MIB
"""Maximum bytes of one event of a stream, and of a response that is not streamed.

The last event of some protocols repeats the whole reply, escaped, with the system prompt and the
tools of the request."""

_EVENT_STREAM = "text/event-stream"
# Frames of a binary stream have a limit in the decoder of its SDK.
_FRAMED_STREAM = "application/vnd.amazon.eventstream"
_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
_LONGEST_END = max(map(len, _ENDS))


def bounded_client(make: Callable[..., httpx2.AsyncClient]) -> httpx2.AsyncClient:
    """Returns an HTTP client whose responses are bounded, with the certificates of the system.

    It keeps no cookies: projects with keys of their own share the client.

    Args:
        make: The class of clients with the defaults of an SDK.
    """
    context = system_ssl_context()
    no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))
    client = make(event_hooks={"response": [_bound]}, verify=context, cookies=no_cookies)
    # In place of the one for requests without a proxy; the SDK replaces the same for its own one.
    client._transport = AiohttpTransport(context)  # noqa: SLF001
    return client


async def _bound(response: httpx2.Response) -> None:
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    stream = response.stream
    if kind == _FRAMED_STREAM or not isinstance(stream, httpx2.AsyncByteStream):
        return
    # Ends of events cannot be seen in a compressed stream, whose length is limited instead.
    compressed = "content-encoding" in response.headers
    by_event = kind == _EVENT_STREAM and not compressed
    if compressed:
        # Kilobytes can become gigabytes, and httpx2 has no public place for a limit.
        response._decoder = _BoundedDecoder(response._get_content_decoder(), MAX_BYTES)  # noqa: SLF001
    response.stream = _BoundedStream(stream, by_event=by_event, max_bytes=MAX_BYTES)


class _BoundedStream(httpx2.AsyncByteStream, AsyncIterator[bytes]):
    """The bytes of a response.

    Args:
        stream: The bytes.
        by_event: Whether each event may have `max_bytes`; otherwise all of them together.
        max_bytes: The limit.
    """

    def __init__(self, stream: httpx2.AsyncByteStream, *, by_event: bool, max_bytes: int) -> None:
        self._stream = stream
        self._chunks = aiter(stream)
        self._by_event = by_event
        self._max_bytes = max_bytes
        # Bytes of the event, or of the whole response.
        self._size = 0
        # The end of an event may be divided between two chunks.
        self._tail = b""

    def __aiter__(self) -> Self:
        """Returns itself."""
        return self

    async def __anext__(self) -> bytes:
        """Returns the next bytes.

        Raises:
            httpx2.RemoteProtocolError: There are too many.
        """
        chunk = await anext(self._chunks)
        if self._by_event and chunk.endswith(_ENDS):
            self._size, self._tail = 0, b""
            return chunk
        self._size += len(chunk)
        if self._by_event:
            tail_and_chunk = self._tail + chunk
            end = max(
                tail_and_chunk.rfind(mark) + len(mark) if mark in tail_and_chunk else 0
                for mark in _ENDS
            )
            if end:
                self._size = min(self._size, len(tail_and_chunk) - end)
            self._tail = tail_and_chunk[1 - _LONGEST_END :]
        if self._size > self._max_bytes:
            raise _too_long("an event" if self._by_event else "a response", self._max_bytes)
        return chunk

    async def aclose(self) -> None:
        """Closes the stream."""
        await self._stream.aclose()


class _BoundedDecoder(ContentDecoder):
    """Decodes a compressed response, of which no more than `max_bytes` may result.

    Args:
        decoder: Decodes it, in parts of at most 1 MiB.
        max_bytes: The limit.
    """

    def __init__(self, decoder: ContentDecoder, max_bytes: int) -> None:
        self._decoder = decoder
        self._max_bytes = max_bytes
        self._size = 0

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Decodes the next bytes of the response, and yields the decoded parts.

        Raises:
            httpx2.RemoteProtocolError: It is too much.
        """
        for part in self._decoder.decode(data):
            self._size += len(part)
            if self._size > self._max_bytes:
                raise _too_long("a response", self._max_bytes)
            yield part

    def flush(self) -> Iterator[bytes]:
        """Yields the rest."""
        return self._decoder.flush()


def _too_long(part: str, max_bytes: int) -> httpx2.RemoteProtocolError:
    return httpx2.RemoteProtocolError(f"the server sent {part} of more than {max_bytes} bytes")
