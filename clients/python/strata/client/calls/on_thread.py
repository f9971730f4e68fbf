"""Calls the methods of an async object from synchronous code, on an event loop in a thread."""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextvars import ContextVar
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
AsyncT = TypeVar("AsyncT")
AsyncT_co = TypeVar("AsyncT_co", covariant=True)

_Work: TypeAlias = "queue.SimpleQueue[Callable[[], None] | None]"

# Functions for the thread that waits for the current coroutine; None without such a thread.
_work_of_caller: ContextVar[_Work | None] = ContextVar("work_of_caller", default=None)


async def on_calling_thread(function: Callable[..., ResultT], /, *args: Any) -> ResultT:
    """Calls a function on the thread that waits in `LoopThread.run`; without one, on this thread.

    The function may use the client: the loop continues while it runs.
    """
    work = _work_of_caller.get()
    if work is None:
        return function(*args)
    future: Future[ResultT] = Future()

    def call() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(function(*args))
        except Exception as error:  # noqa: BLE001 - the caller of this function gets every error
            future.set_exception(error)

    work.put(call)
    return await asyncio.wrap_future(future)


class LoopThread:
    """An event loop that runs in a separate thread until it is closed."""

    def __init__(self) -> None:
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="strata-client", daemon=True)
        self._thread.start()
        self._started.wait()

    def run(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Runs a coroutine on the loop, and returns its result.

        An exception that interrupts the wait, such as `KeyboardInterrupt`, cancels the coroutine.

        Raises:
            RuntimeError: The loop is closed, or this is its thread, which cannot wait for itself.
        """
        if not self._thread.is_alive():
            coroutine.close()
            raise RuntimeError("The client is closed.")
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError(
                "An async function that the client calls cannot use the client of connect_sync. "
                "Make it a plain function, which runs in another thread."
            )
        work: _Work = queue.SimpleQueue()
        before = _work_of_caller.set(work)
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        finally:
            _work_of_caller.reset(before)
        future.add_done_callback(lambda _: work.put(None))
        try:
            while (call := work.get()) is not None:
                call()
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncGenerator[ResultT, None]) -> Iterator[ResultT]:
        """Yields what an async generator yields on the loop."""
        # A step whose wait is interrupted ends later, and the generator cannot be closed before.
        running = asyncio.Lock()

        async def step() -> ResultT:
            async with running:
                return await anext(items)

        async def close() -> None:
            async with running:
                await items.aclose()

        try:
            while True:
                try:
                    yield self.run(step())
                except StopAsyncIteration:
                    return
        finally:
            # The end of the loop has closed the generator.
            if self._thread.is_alive():
                self.run(close())

    def close(self) -> None:
        """Cancels the tasks of the loop, and ends the thread."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        self._started.set()
        await self._stopped.wait()


class OnThread(Generic[AsyncT_co]):
    """An object with the methods of an async object; see `returning` and `iterating`.

    Args:
        inner: The async object.
        thread: The loop that it runs on.
    """

    def __init__(self, inner: AsyncT_co, thread: LoopThread) -> None:
        self._inner = inner
        self._thread = thread


def returning(
    method: Callable[Concatenate[AsyncT, P], Coroutine[Any, Any, ResultT]],
) -> Callable[Concatenate[OnThread[AsyncT], P], ResultT]:
    """Returns a method that waits for a method of the inner object."""

    @wraps(method)
    def run(self: OnThread[AsyncT], /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        return self._thread.run(method(self._inner, *args, **kwargs))

    return run


def iterating(
    method: Callable[Concatenate[AsyncT, P], AsyncGenerator[ResultT, None]],
) -> Callable[Concatenate[OnThread[AsyncT], P], Iterator[ResultT]]:
    """Returns a method that iterates over an async generator of the inner object."""

    @wraps(method)
    def iterate(self: OnThread[AsyncT], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[ResultT]:
        return self._thread.iterate(method(self._inner, *args, **kwargs))

    item = inspect.signature(method).return_annotation.removeprefix("AsyncGenerator[")
    show_return(iterate, f"Iterator[{item.removesuffix(', None]')}]")
    return iterate


def show_return(function: Callable[..., Any], annotation: str) -> None:
    """Makes ``help`` show what a function returns, and not what the wrapped one does."""
    signature = inspect.signature(function)
    vars(function)["__signature__"] = signature.replace(return_annotation=annotation)
