"""The way to a server over HTTP: guarded, bounded, and never led elsewhere.

Like `strata.shared.web.fetching`: a name is resolved once, its addresses are checked, and the
connection goes to one of them, while Host, SNI and the certificate's check keep the name.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping

import httpx2

from strata.shared.web.errors import FetchError, ForbiddenUrlError
from strata.shared.web.url_guard import Admission, parse_url

_MOST_ADDRESSES = 4
SIGN_IN = frozenset((401, 403))
_EVENTS = "text/event-stream"


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Sends requests only where they may go.

    Args:
        admission: Decides what may be reached, and finds the addresses.
        limit: Bytes of the longest answer; streams of events are bounded for each event.
        ssl_context: Verifies servers.

    Attributes:
        last_status: Of the last message that was sent; 0 if there was no answer yet.
    """

    def __init__(self, admission: Admission, limit: int, ssl_context: ssl.SSLContext) -> None:
        self._admission = admission
        self._limit = limit
        self._transport = httpx2.AsyncHTTPTransport(verify=ssl_context, trust_env=False)
        self.last_status = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends a request.

        Raises:
            ConnectError: It may not go there, or nobody answers; of httpx2.
        """
        try:
            target = parse_url(str(request.url))
            addresses = await self._admission.resolve(target)
        except (ForbiddenUrlError, FetchError) as error:
            raise httpx2.ConnectError(error.message, request=request) from None
        failure: Exception | None = None
        for address in addresses[:_MOST_ADDRESSES]:
            sent = httpx2.Request(
                request.method,
                request.url.copy_with(host=str(address)),
                headers=request.headers,
                stream=request.stream,
                extensions={**request.extensions, "sni_hostname": target.host},
            )
            try:
                response = await self._transport.handle_async_request(sent)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                failure = error
                continue
            # Servers may refuse the stream of a GET; the session goes on without.
            if request.method == "POST" or response.status_code in SIGN_IN:
                self.last_status = response.status_code
            return await self._bounded(response, request)
        assert failure is not None
        raise failure

    async def _bounded(self, response: httpx2.Response, request: httpx2.Request) -> httpx2.Response:
        packed = response.headers.get("content-encoding", "identity").strip().lower()
        if packed not in ("", "identity"):
            await response.aclose()
            raise httpx2.RemoteProtocolError("the answer is packed, unasked", request=request)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        stream = response.stream
        assert isinstance(stream, httpx2.AsyncByteStream)
        if kind != _EVENTS:
            response.stream = _Bounded(stream, self._limit, request)
        return response

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._transport.aclose()


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, limit: int, request: httpx2.Request) -> None:
        self._stream = stream
        self._limit = limit
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._limit
        async for chunk in self._stream:
            left -= len(chunk)
            if left < 0:
                raise httpx2.ReadError(
                    f"the answer exceeds {self._limit} bytes", request=self._request
                )
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def guarded_client(
    transport: GuardedTransport,
    headers: Mapping[str, str],
    connect_s: float,
    read_s: float,
    auth: httpx2.Auth | None = None,
) -> httpx2.AsyncClient:
    """Returns a client that uses the transport for everything; proxies take no part.

    Args:
        transport: The way out.
        headers: Sent with every request.
        connect_s: Seconds to connect.
        read_s: Seconds between two pieces of an answer.
        auth: Signs requests in.
    """
    return httpx2.AsyncClient(
        transport=transport,
        auth=auth,
        headers={"Accept-Encoding": "identity", "User-Agent": "Strata", **headers},
        timeout=httpx2.Timeout(connect_s, read=read_s),
        trust_env=False,
        follow_redirects=False,
    )
