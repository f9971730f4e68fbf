"""The requests that a client sends in a call with a stream of requests."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

RequestT = TypeVar("RequestT")


class RequestStream(Generic[RequestT]):
    """An iterator over the requests of one call, open for more until it is closed.

    grpc.aio reads such an iterator in a task of its own and does not end that task with the
    call: an iterator that still waits then leaves a pending task behind. The caller
    closes the stream when the call is over.

    Args:
        requests: The first requests, in their order.
    """

    # Not a generator: one that waits when its call is cancelled cannot be closed.
    def __init__(self, *requests: RequestT) -> None:
        self._queue: asyncio.Queue[RequestT | None] = asyncio.Queue()
        for request in requests:
            self.add(request)

    def add(self, request: RequestT) -> None:
        """Sends a request after those that were added before."""
        self._queue.put_nowait(request)

    def close(self) -> None:
        """Ends the stream after what was added; closing it again does nothing more."""
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
