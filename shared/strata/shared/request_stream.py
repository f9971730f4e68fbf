"""The stream of requests that a client sends in a streaming call."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

RequestT = TypeVar("RequestT")


class RequestStream(Generic[RequestT]):
    """An iterator over the requests of one call; requests can be added until it is closed.

    grpc.aio reads such an iterator in a task that does not end with the call. Close the stream
    when the call is over, or the task stays pending.

    Args:
        requests: The first requests, in their order.
    """

    # Not a generator, because a generator that is waiting cannot be closed.
    def __init__(self, *requests: RequestT) -> None:
        self._queue: asyncio.Queue[RequestT | None] = asyncio.Queue()
        for request in requests:
            self.add(request)

    def add(self, request: RequestT) -> None:
        """Appends a request to the stream."""
        self._queue.put_nowait(request)

    def close(self) -> None:
        """Ends the stream after the requests added so far; may be repeated."""
        self._queue.put_nowait(None)

    def __aiter__(self) -> RequestStream[RequestT]:
        return self

    async def __anext__(self) -> RequestT:
        request = await self._queue.get()
        if request is None:
            # Every later read ends as well.
            self._queue.put_nowait(None)
            raise StopAsyncIteration
        return request
