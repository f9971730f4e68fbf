"""The stream of requests that a client sends in a streaming call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

RequestT = TypeVar("RequestT")


class RequestStream(Generic[RequestT]):
    """The requests of one call; requests can be added until the stream is closed.

    The requests are kept, and every iterator begins with the first one, so that a call can be
    attempted again. A new iterator ends the one before it: grpc.aio reads the requests of an
    attempt in a task that does not end with the attempt. Close the stream when the call is over,
    or the last of these tasks stays pending.

    Args:
        requests: The first requests, in their order.
    """

    def __init__(self, *requests: RequestT) -> None:
        self._requests = list(requests)
        self._closed = False
        self._iterators = 0
        self._changed = asyncio.Event()

    def add(self, request: RequestT) -> None:
        """Appends a request to the stream."""
        self._requests.append(request)
        self._changed.set()

    def close(self) -> None:
        """Ends the stream after the requests added so far; may be repeated."""
        self._closed = True
        self._changed.set()

    def __aiter__(self) -> AsyncIterator[RequestT]:
        self._iterators += 1
        self._changed.set()
        return self._iterate(self._iterators)

    async def _iterate(self, number: int) -> AsyncIterator[RequestT]:
        position = 0
        while number == self._iterators:
            if position < len(self._requests):
                yield self._requests[position]
                position += 1
            elif self._closed:
                return
            else:
                self._changed.clear()
                await self._changed.wait()
