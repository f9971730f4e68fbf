"""HTTP transport to MCP servers that checks addresses, limits responses and follows no redirects.

As in `strata.shared.web.fetcher`, a name is resolved once, its addresses are checked, and the
connection uses one of them. Host, SNI and certificate verification use the name.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping

import httpx2

from strata.shared.json_text import LoneSurrogateFilter
from strata.shared.web.errors import FetchError, ForbiddenUrlError
from strata.shared.web.url_guard import TargetCheck, parse_url

_MOST_ADDRESSES = 4
SIGN_IN = frozenset((401, 403))
_EVENTS = "text/event-stream"
# Bytes of an event stream that the SDK gets at once. It reads all of their lines before other work
# gets a turn, and a line that is no event may have one byte.
_EVENT_BYTES_AT_ONCE = 4 * 1024


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Sends requests only to allowed addresses.

    Args:
        admission: Resolves names and checks the addresses.
        limit: Maximum size of a response in bytes; the SDK limits each event of event streams.
        ssl_context: Verifies servers.

    Attributes:
        last_status: HTTP status of the last message that was sent; 0 before the first response.
    """

    def __init__(self, admission: TargetCheck, limit: int, ssl_context: ssl.SSLContext) -> None:
        self._admission = admission
        self._limit = limit
        self._transport = httpx2.AsyncHTTPTransport(verify=ssl_context, trust_env=False)
        self.last_status = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends a request.

        Raises:
            httpx2.ConnectError: The address is not allowed, or no server answers there.
        """
        try:
            target = parse_url(str(request.url))
            addresses = await self._admission.resolve(target)
        except (ForbiddenUrlError, FetchError) as error:
            raise httpx2.ConnectError(error.message, request=request) from None
        failure: Exception | None = None
        for address in addresses[:_MOST_ADDRESSES]:
            guarded_request = httpx2.Request(
                request.method,
                request.url.copy_with(host=str(address)),
                headers=request.headers,
                stream=request.stream,
                extensions={**request.extensions, "sni_hostname": target.host},
            )
            try:
                response = await self._transport.handle_async_request(guarded_request)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                failure = error
                continue
            # Servers may refuse the event stream (GET); the session works without it.
            if request.method == "POST" or response.status_code in SIGN_IN:
                self.last_status = response.status_code
            return await self._bounded(response, request)
        assert failure is not None
        raise failure

    async def _bounded(self, response: httpx2.Response, request: httpx2.Request) -> httpx2.Response:
        packed = response.headers.get("content-encoding", "identity").strip().lower()
        if packed not in ("", "identity"):
            await response.aclose()
            raise httpx2.RemoteProtocolError(
                "the answer is compressed, which was not requested", request=request
            )
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        stream = response.stream
        assert isinstance(stream, httpx2.AsyncByteStream)
        if kind == _EVENTS:
            response.stream = _EventBody(stream, None, request)
        else:
            response.stream = _Body(stream, self._limit, request)
        return response

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._transport.aclose()


class _Body(httpx2.AsyncByteStream):
    """A body of JSON or of events with JSON, which the SDK can parse: see `LoneSurrogateFilter`.

    Args:
        stream: The body as the server sends it.
        limit: Maximum size in bytes; None for any.
        request: The request that it answers.
    """

    def __init__(
        self, stream: httpx2.AsyncByteStream, limit: int | None, request: httpx2.Request
    ) -> None:
        self._stream = stream
        self._limit = limit
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        surrogates = LoneSurrogateFilter()
        async for chunk in self._stream:
            size += len(chunk)
            if self._limit is not None and size > self._limit:
                raise httpx2.ReadError(
                    f"the answer exceeds {self._limit} bytes", request=self._request
                )
            if text := surrogates.feed(chunk):
                yield text
        if rest := surrogates.close():
            yield rest

    async def aclose(self) -> None:
        await self._stream.aclose()


class _EventBody(_Body):
    """A body of events, in small pieces with turns for other work in between."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in super().__aiter__():
            for start in range(0, len(chunk), _EVENT_BYTES_AT_ONCE):
                yield chunk[start : start + _EVENT_BYTES_AT_ONCE]
                await asyncio.sleep(0)


def guarded_client(
    transport: GuardedTransport,
    headers: Mapping[str, str],
    connect_s: float,
    read_s: float,
    auth: httpx2.Auth | None = None,
) -> httpx2.AsyncClient:
    """Returns an HTTP client that uses only this transport and no proxies of the environment.

    Args:
        transport: The transport.
        headers: Headers of every request.
        connect_s: Seconds to connect.
        read_s: Seconds between two chunks of a response.
        auth: Adds credentials to requests.
    """
    return httpx2.AsyncClient(
        transport=transport,
        auth=auth,
        headers={"Accept-Encoding": "identity", "User-Agent": "Strata", **headers},
        timeout=httpx2.Timeout(connect_s, read=read_s),
        trust_env=False,
        follow_redirects=False,
    )
