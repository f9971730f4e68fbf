"""The client for programs without an event loop: the async client on a loop in a thread."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
)
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from functools import wraps
from typing import ParamSpec, Protocol, TypeVar

from strata.client.calls.on_thread import LoopThread, OnThread, iterating, returning, show_return
from strata.client.calls.uploads import ObservedRequests, requests_of_caller
from strata.client.connection import Client, connect
from strata.client.generated.clients import SyncServiceCalls
from strata.client.services import Services

P = ParamSpec("P")
RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
RequestT_contra = TypeVar("RequestT_contra", contravariant=True)
ResponseT_co = TypeVar("ResponseT_co", covariant=True)


class UnaryMethod(Protocol[RequestT_contra, ResponseT_co]):
    """A unary method of a stub. Types of gRPC itself are known only where stubs for it are."""

    def __call__(
        self, request: RequestT_contra, /, *, timeout: float | None = None
    ) -> Awaitable[ResponseT_co]:
        """Makes a call."""


class SyncClient(SyncServiceCalls[Client]):
    """Client of one gateway without ``await``; created by `connect_sync`.

    It has the methods of `Client`. A request as a whole is sent by `call`, `stream` or `upload`
    with a method of a stub:
    ``client.call(client.agents.GetAgent, GetAgentRequest(name="cashier"))``. It may be used by
    several threads.
    """

    def __init__(self, client: Client, thread: LoopThread) -> None:
        OnThread.__init__(self, client, thread)
        Services.__init__(self, client.channel)

    def call(
        self,
        method: UnaryMethod[RequestT, ResponseT],
        request: RequestT,
        *,
        timeout_s: float | None = None,
    ) -> ResponseT:
        """Makes a call, and returns its response.

        Args:
            method: A method of one of this client's stubs.
            request: The request.
            timeout_s: Deadline in seconds; None for the connection's.

        Raises:
            StrataError: The gateway refused, or does not answer.
        """

        async def respond() -> ResponseT:
            return await method(request, timeout=timeout_s)

        return self._thread.run(respond())

    def stream(
        self, method: Callable[[RequestT], AsyncIterable[ResponseT]], request: RequestT
    ) -> Iterator[ResponseT]:
        """Makes a call, and yields its responses.

        Args:
            method: A method of one of this client's stubs.
            request: The request.

        Raises:
            StrataError: The gateway refused, or does not answer.
        """

        async def responses() -> AsyncGenerator[ResponseT, None]:
            async for response in method(request):
                yield response

        return self._thread.iterate(responses())

    def upload(
        self,
        method: Callable[[AsyncIterator[RequestT]], Awaitable[ResponseT]],
        requests: Iterable[RequestT],
    ) -> ResponseT:
        """Makes a call with a stream of requests, and returns its response.

        Args:
            method: A method of one of this client's stubs.
            requests: The requests; read on the thread of the caller. They may use this client.

        Raises:
            StrataError: The gateway refused, or does not answer.
        """

        async def respond() -> ResponseT:
            sent = ObservedRequests(requests_of_caller(requests))
            with sent.failures():
                return await method(sent)

        return self._thread.run(respond())

    send = iterating(Client.send)
    ask = returning(Client.ask)
    resume = iterating(Client.resume)
    answer = iterating(Client.answer)
    follow = iterating(Client.follow)
    upsert_tool = returning(Client.upsert_tool)
    run_tool = returning(Client.run_tool)


def _synchronous(
    open_: Callable[P, AbstractAsyncContextManager[Client]],
) -> Callable[P, AbstractContextManager[SyncClient]]:
    @wraps(open_)
    @contextmanager
    def opened(*args: P.args, **kwargs: P.kwargs) -> Iterator[SyncClient]:
        thread = LoopThread()
        try:
            manager = open_(*args, **kwargs)
            client = thread.run(manager.__aenter__())
            try:
                yield SyncClient(client, thread)
            finally:
                thread.run(manager.__aexit__(None, None, None))
        finally:
            thread.close()

    opened.__name__ = opened.__qualname__ = "connect_sync"
    show_return(opened, "AbstractContextManager[SyncClient]")
    return opened


connect_sync = _synchronous(connect)
"""Opens a connection for the length of a ``with`` block; takes the arguments of `connect`."""
