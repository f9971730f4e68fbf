"""The client for programs without an event loop: the async client on a loop in a thread."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
)
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from strata.client.connection import Client, connect
from strata.client.services import Services

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
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


class _LoopThread:
    """An event loop that runs in a thread of its own until it is closed."""

    def __init__(self) -> None:
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="strata-client", daemon=True)
        self._thread.start()
        self._started.wait()

    def run(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Runs a coroutine on the loop, and returns its result.

        Whatever interrupts the wait, such as `KeyboardInterrupt`, cancels the coroutine.
        """
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancels what runs on the loop, and ends the thread."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        self._started.set()
        await self._stopped.wait()


def _returning(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, ResultT]],
) -> Callable[Concatenate[SyncClient, P], ResultT]:
    @wraps(method)
    def run(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        return self._thread.run(method(self._client, *args, **kwargs))

    return run


def _iterating(
    method: Callable[Concatenate[Client, P], AsyncGenerator[ResultT, None]],
) -> Callable[Concatenate[SyncClient, P], Iterator[ResultT]]:
    @wraps(method)
    def iterate(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[ResultT]:
        return self._iterate(method(self._client, *args, **kwargs))

    item = inspect.signature(method).return_annotation.removeprefix("AsyncGenerator[")
    _show_return(iterate, f"Iterator[{item.removesuffix(', None]')}]")
    return iterate


def _show_return(function: Callable[..., Any], annotation: str) -> None:
    """Makes ``help`` show what a function returns, and not what the wrapped one does."""
    signature = inspect.signature(function)
    vars(function)["__signature__"] = signature.replace(return_annotation=annotation)


class SyncClient(Services):
    """Client of one gateway without ``await``; created by `connect_sync`.

    Every RPC is made by `call`, `stream` or `upload` with a method of a stub:
    ``client.call(client.agents.GetAgent, GetAgentRequest(name="cashier"))``. It may be used by
    several threads.
    """

    def __init__(self, client: Client, thread: _LoopThread) -> None:
        super().__init__(client.channel)
        self._client = client
        self._thread = thread

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
            timeout_s: Deadline in seconds; None for that of the connection.

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

        return self._iterate(responses())

    def upload(
        self,
        method: Callable[[Iterator[RequestT]], Awaitable[ResponseT]],
        requests: Iterable[RequestT],
    ) -> ResponseT:
        """Makes a call with a stream of requests, and returns its response.

        Args:
            method: A method of one of this client's stubs.
            requests: The requests; read on the thread of the connection.

        Raises:
            StrataError: The gateway refused, or does not answer.
        """

        async def respond() -> ResponseT:
            return await method(iter(requests))

        return self._thread.run(respond())

    send = _iterating(Client.send)
    ask = _returning(Client.ask)
    resume = _iterating(Client.resume)
    answer = _iterating(Client.answer)
    follow = _iterating(Client.follow)
    upsert_tool = _returning(Client.upsert_tool)
    run_tool = _returning(Client.run_tool)

    def _iterate(self, items: AsyncGenerator[ResultT, None]) -> Iterator[ResultT]:
        try:
            while True:
                try:
                    yield self._thread.run(anext(items))
                except StopAsyncIteration:
                    return
        finally:
            self._thread.run(items.aclose())


def _synchronous(
    open_: Callable[P, AbstractAsyncContextManager[Client]],
) -> Callable[P, AbstractContextManager[SyncClient]]:
    @wraps(open_)
    @contextmanager
    def opened(*args: P.args, **kwargs: P.kwargs) -> Iterator[SyncClient]:
        thread = _LoopThread()
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
    _show_return(opened, "AbstractContextManager[SyncClient]")
    return opened


connect_sync = _synchronous(connect)
"""Opens a connection for the length of a ``with`` block; takes the arguments of `connect`."""
