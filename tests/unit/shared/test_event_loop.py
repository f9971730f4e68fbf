"""Names that cannot be looked up delay no other name."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from strata.shared import event_loop

SILENT = "silent.test"


class SilentServer:
    """Stands for the resolver of the operating system; look-ups of one name wait.

    Attributes:
        asked: The names that were looked up.
        ends: Set it to fail the look-ups that wait.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.ends = threading.Event()

    def __call__(self, host: str, port: int, *_: int) -> list[Any]:
        self.asked.append(host)
        if host.endswith(SILENT):
            self.ends.wait(30)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", port))]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentServer]:
    silent = SilentServer()
    monkeypatch.setattr(socket, "getaddrinfo", silent)
    yield silent
    silent.ends.set()


def test_a_silent_name_delays_no_other_name(server: SilentServer) -> None:
    async def look_up() -> tuple[Any, list[Any]]:
        loop = asyncio.get_running_loop()
        names = [SILENT] * 50 + [f"{number}.{SILENT}" for number in range(20)]
        waiting = [asyncio.create_task(loop.getaddrinfo(name, 443)) for name in names]
        await asyncio.sleep(0)
        async with asyncio.timeout(20):
            answer = await loop.getaddrinfo("other.test", 443)
        # One of those that wait gives up, which ends no look-up of the others.
        waiting[0].cancel()
        server.ends.set()
        return answer, await asyncio.gather(*waiting, return_exceptions=True)

    with asyncio.Runner(loop_factory=event_loop.loop_factory()) as runner:
        answer, failures = runner.run(look_up())
    assert [entry[4] for entry in answer] == [("192.0.2.1", 443)]
    assert isinstance(failures[0], asyncio.CancelledError)
    assert {type(failure) for failure in failures[1:]} == {socket.gaierror}
    assert len(server.asked) == 1 + 20 + 1


def test_the_threads_are_bounded(server: SilentServer) -> None:
    async def look_up() -> int:
        loop = asyncio.get_running_loop()
        names = [f"{number}.{SILENT}" for number in range(100)]
        waiting = [asyncio.create_task(loop.getaddrinfo(name, 443)) for name in names]
        other = asyncio.create_task(loop.getaddrinfo("other.test", 443))
        await asyncio.sleep(0.05)
        asked = len(server.asked)
        server.ends.set()
        await asyncio.gather(*waiting, other, return_exceptions=True)
        assert other.exception() is None
        return asked

    with asyncio.Runner(loop_factory=event_loop.loop_factory()) as runner:
        assert runner.run(look_up()) <= 64
    assert len(server.asked) == 101


def test_a_look_up_that_hangs_does_not_delay_the_end(server: SilentServer) -> None:
    async def look_up() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await loop.getaddrinfo(SILENT, 443)

    with asyncio.Runner(loop_factory=event_loop.loop_factory()) as runner:
        runner.run(look_up())
    assert not server.ends.is_set()
