"""A TCP relay on loopback whose connections a test breaks or delays."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self


class TcpRelay:
    """Passes connections on to an address, always from the same port.

    Args:
        target: ``host:port`` of the peer.
        delay_s: Seconds before each chunk is passed on.

    Attributes:
        count: How many connections were accepted.
    """

    def __init__(self, target: str, *, delay_s: float = 0.0) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._delay_s = delay_s
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._own_port = 0
        self.count = 0

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self._own_port}"

    async def open(self) -> None:
        """Accepts connections."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._own_port)
        self._own_port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Breaks all connections, and accepts no more until it is opened again."""
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    def cut(self) -> None:
        """Breaks all connections."""
        for writer in list(self._writers):
            writer.transport.abort()
        self._writers.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.count += 1
        there_reader, there = await asyncio.open_connection(self._host, self._port)
        self._writers |= {writer, there}
        for source, sink in ((reader, there), (there_reader, writer)):
            task = asyncio.create_task(self._pass(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                await asyncio.sleep(self._delay_s)
                sink.write(data)
                await sink.drain()
        self._writers.discard(sink)
        sink.close()
