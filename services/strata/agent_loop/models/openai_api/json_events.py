"""The events of a streamed reply, each of which is JSON, and the requests for such replies.

The SDK makes an asynchronous generator for each layer of a stream, and waits for each event, also
for those that have arrived together. Here the bytes that have arrived are divided at once.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

import anyio
import httpx2
from openai import APIConnectionError, APIError, APITimeoutError, AsyncOpenAI, AsyncStream

from strata.agent_loop.models.openai_api.request_json import encoded_request

_DONE = "[DONE]"
_DECODER = json.JSONDecoder()
_UNNAMED_ERROR = "An error occurred during streaming"
# How long to wait for the end of the response after the last event, to use its connection again.
_END_S = 0.1
BROKEN = (httpx2.RequestError, ssl.SSLError, anyio.EndOfStream)
"""Errors of the transport that mean that no answer comes, as for the SDK."""


class ServerSentData:
    """Divides the bytes of a stream into the data of its events, as the HTML standard says.

    Names, ids and other fields of events are ignored.
    """

    def __init__(self) -> None:
        # The beginning of a line that has not ended, in pieces: a line may come in many.
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._after_return = False

    def feed(self, received: bytes) -> list[bytes]:
        """Returns the data of the events that end in the next bytes."""
        if self._is_one_event(received):
            return [received[6:-2]]
        if b"\r" in received or self._after_return:
            received = self._with_newlines(received)
        first, *others = received.split(b"\n")
        if not others:
            self._line.append(first)
            return []
        self._line.append(first)
        lines = [b"".join(self._line), *others]
        self._line = [lines.pop()]
        return [data for line in lines if (data := self._take(line)) is not None]

    def _is_one_event(self, received: bytes) -> bool:
        """Whether the bytes are one event with one line of data, as nearly always."""
        return (
            received.startswith(b"data: ")
            and received.endswith(b"\n\n")
            and received.count(b"\n") == 2
            and b"\r" not in received
            and not (self._data or self._after_return or any(self._line))
        )

    def _with_newlines(self, received: bytes) -> bytes:
        """Returns bytes whose lines end with a newline only; a line may end with a return."""
        if self._after_return:
            received = received.removeprefix(b"\n")
        self._after_return = received.endswith(b"\r")
        return received.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _take(self, line: bytes) -> bytes | None:
        """Adds a line; returns the data of the event that it ends."""
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif line == b"data":
            self._data.append(b"")
        elif not line and self._data:
            data, self._data = b"\n".join(self._data), []
            return data
        return None


class JsonEvents(AsyncStream[object]):
    """The events of a reply, as parsed JSON.

    Args:
        response: The response whose body is the stream.
        options: Of the SDK, which are not used.
    """

    def __init__(self, *, response: httpx2.Response, **_options: Any) -> None:
        # Does not call the method of the SDK, which makes the generators.
        self.response = response
        stream = response.stream
        self._received: AsyncIterator[bytes] = (
            aiter(stream)
            if isinstance(stream, AsyncIterable) and "content-encoding" not in response.headers
            else response.aiter_bytes()
        )
        self._data = ServerSentData()
        self._waiting: deque[bytes] = deque()
        self._done = self._ended = False

    @property
    def ready(self) -> bool:
        """Whether an event has arrived, or the stream has ended, so that `pop` can be called."""
        return bool(self._waiting) or self._ended or self._done

    async def read(self) -> None:
        """Waits for more of the stream.

        Raises:
            openai.APITimeoutError: Nothing came in time.
            openai.APIConnectionError: The connection broke.
        """
        try:
            self._waiting.extend(self._data.feed(await anext(self._received)))
        except StopAsyncIteration:
            self._ended = True
        except BROKEN as error:
            raise connection_error(error, self.response.request) from error

    def pop(self) -> object:
        """Returns the next event.

        Raises:
            StopAsyncIteration: The stream has ended.
            ValueError: It is not JSON.
            RecursionError: It is nested too deeply.
            openai.APIError: It reports an error.
        """
        if self._done or not self._waiting:
            raise StopAsyncIteration
        text = self._waiting.popleft().decode()
        if text.startswith(_DONE):
            self._done = True
            raise StopAsyncIteration
        event = _parse(text)
        if isinstance(event, dict) and (reported := event.get("error")):
            message = reported.get("message") if isinstance(reported, dict) else None
            text = message if isinstance(message, str) and message else _UNNAMED_ERROR
            raise APIError(text, request=self.response.request, body=reported)
        return event

    def __aiter__(self) -> AsyncIterator[object]:
        """Returns itself."""
        return self

    async def __anext__(self) -> object:
        """Returns the next event, waiting for it; raises as `read` and `pop` do."""
        while not self.ready:
            await self.read()
        return self.pop()

    async def close(self) -> None:
        """Closes the response; if it is complete, its connection can be used again."""
        try:
            if self._done and not self._ended:
                with suppress(TimeoutError, *BROKEN):
                    async with asyncio.timeout(_END_S):
                        async for _ in self._received:
                            pass
        finally:
            if isinstance(self._received, AsyncGenerator):
                await self._received.aclose()
            await self.response.aclose()


def _parse(text: str) -> object:
    # As `json.loads` does, with fewer calls for each piece of a reply.
    try:
        event, end = _DECODER.raw_decode(text)
    except ValueError:
        end = -1
    return event if end == len(text) else json.loads(text)


def connection_error(error: Exception, request: httpx2.Request) -> APIConnectionError:
    """Returns the SDK's error for one of its transport."""
    if isinstance(error, httpx2.TimeoutException):
        return APITimeoutError(request=request)
    return APIConnectionError(request=request)


class RepeatedRequest:
    """Sends requests with the address and the headers of the one that the SDK sent first.

    For every request the SDK calls some 500 functions to put the same headers and the same address
    together. They depend on the client and the name of the model only.

    Args:
        client: The client of the endpoint.
        first: The request that the SDK sent.
    """

    def __init__(self, client: AsyncOpenAI, first: httpx2.Request) -> None:
        self._client = client
        self._http: httpx2.AsyncClient = client._client  # noqa: SLF001 - the transport of the SDK
        self._url = first.url
        self._extensions = first.extensions
        headers = [
            (name, value) for name, value in first.headers.raw if name.lower() != b"content-length"
        ]
        self._headers = httpx2.Headers(headers)

    async def send(self, body: Mapping[str, object]) -> JsonEvents:
        """Sends a request and returns the events of its reply.

        Raises:
            openai.APIConnectionError: The server cannot be reached in time.
            openai.APIStatusError: It refuses the request.
        """
        text = encoded_request(body)
        headers = httpx2.Headers(self._headers, encoding="utf-8")
        headers["Content-Length"] = str(len(text))
        # With `content` instead of `stream`, all headers would be assembled once more.
        request = httpx2.Request(
            "POST",
            self._url,
            headers=headers,
            stream=httpx2.ByteStream(text),
            extensions=self._extensions,
        )
        try:
            response = await self._http.send(request, stream=True)
        except BROKEN as error:
            raise connection_error(error, request) from error
        if not response.is_success:
            await response.aread()
            raise self._client._make_status_error_from_response(response)  # noqa: SLF001 - as above
        return JsonEvents(response=response)
