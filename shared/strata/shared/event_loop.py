"""The event loop of the services: uvloop where it is installed, with parts of our own.

Child processes are started without a fork, see `child_processes`.

Names are looked up on separate threads. uvloop and asyncio use a few threads that the whole process
shares: uvloop has two, asyncio uses the threads of all other work. A name whose server is silent
keeps its thread for as long as the C library tries, typically 10 to 40 seconds. A few calls to one
such model endpoint then delayed the connections to all others, fallback models included.
"""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

from strata.shared.child_processes import start_child

_Question: TypeAlias = tuple[Any, Any, int, int, int, int]
_Answer: TypeAlias = list[tuple[Any, ...]]

# Names that are looked up at once.
_THREADS = 64


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Returns the factory of event loops."""
    if importlib.util.find_spec("uvloop") is None:
        return _own_look_ups(asyncio.SelectorEventLoop)
    import uvloop  # noqa: PLC0415 - optional, and not on every platform

    return _own_look_ups(_own_children(uvloop.Loop))


def _own_children(base: Any) -> Any:
    """Returns a subclass of uvloop's class that starts child processes by `start_child`."""

    class Loop(base):  # type: ignore[misc]
        async def subprocess_exec(
            self,
            protocol_factory: Callable[[], asyncio.SubprocessProtocol],
            program: str | bytes,
            *args: str | bytes,
            stdin: Any = subprocess.PIPE,
            stdout: Any = subprocess.PIPE,
            stderr: Any = subprocess.PIPE,
            **options: Any,
        ) -> tuple[asyncio.SubprocessTransport, asyncio.SubprocessProtocol]:
            protocol = protocol_factory()
            transport = await start_child(
                self,
                protocol,
                (program, *args),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                options=options,
            )
            return transport, protocol

    return Loop


def _own_look_ups(base: Any) -> Callable[[], asyncio.AbstractEventLoop]:
    """Returns a subclass of an event loop class that resolves names with `NameLookups`."""

    class Loop(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._lookups = NameLookups()

        async def getaddrinfo(
            self,
            host: Any,
            port: Any,
            *,
            family: int = 0,
            type: int = 0,  # noqa: A002 - the name that asyncio gives it
            proto: int = 0,
            flags: int = 0,
        ) -> _Answer:
            return await self._lookups.find((host, port, family, type, proto, flags))

    return Loop


class NameLookups:
    """Look-ups by the operating system, each on a separate thread; equal look-ups share one."""

    def __init__(self) -> None:
        self._running: dict[_Question, asyncio.Task[_Answer]] = {}
        self._slots = asyncio.Semaphore(_THREADS)

    async def find(self, question: _Question) -> _Answer:
        """Returns the addresses of a name; the question has the arguments of `getaddrinfo`.

        Raises:
            OSError: The name has no address.
        """
        running = self._running.get(question)
        if running is None:
            running = asyncio.create_task(self._find(question))
            self._running[question] = running
            running.add_done_callback(partial(self._forget, question))
        # None of those that wait may cancel it for the others.
        return await asyncio.shield(running)

    async def _find(self, question: _Question) -> _Answer:
        async with self._slots:
            return await _on_thread(question)

    def _forget(self, question: _Question, ended: asyncio.Task[_Answer]) -> None:
        del self._running[question]
        if not ended.cancelled():
            # Marks the error as retrieved: those that waited may have given up.
            ended.exception()


async def _on_thread(question: _Question) -> _Answer:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[_Answer] = loop.create_future()

    def settle(addresses: _Answer | None, error: Exception | None) -> None:
        if answer.done():
            return
        if addresses is None:
            answer.set_exception(error or OSError("the name cannot be looked up"))
        else:
            answer.set_result(addresses)

    def look_up() -> None:
        addresses: _Answer | None = None
        problem: Exception | None = None
        try:
            addresses = list(socket.getaddrinfo(*question))
        except Exception as error:  # noqa: BLE001 - raised to those that wait
            problem = error
        # The loop may have been closed meanwhile.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, addresses, problem)

    # The end of the process does not wait for it.
    threading.Thread(target=look_up, name="name look-up", daemon=True).start()
    return await answer
