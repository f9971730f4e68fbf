"""A TCP proxy that loses answers and refuses connections, between a service and its peer."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Literal, Self

Mode = Literal["pass", "refuse", "lose"]


class CutProxy:
    """Passes connections on to an address.

    Args:
        target: ``host:port`` of the peer.

    Attributes:
        mode: "pass"; "refuse" closes every connection at once; "lose" passes requests on, drops
            what comes back and then closes the connection.
        after_loss: The mode after an answer was lost.
        lost: Connections whose answer was dropped.
    """

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.mode: Mode = "pass"
        self.after_loss: Mode = "pass"
        self.lost = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def address(self) -> str:
        """Where it listens."""
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Closes all connections."""
        for writer in list(self._connections):
            writer.close()
        self._connections.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.mode == "refuse":
            writer.close()
            return
        there_reader, there = await asyncio.open_connection(self._host, self._port)
        self._connections |= {writer, there}
        for copy in (self._requests(reader, there), self._answers(there_reader, writer)):
            task = asyncio.create_task(copy)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _requests(self, reader: asyncio.StreamReader, there: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                there.write(data)
                await there.drain()
        there.close()

    async def _answers(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await there.read(1 << 16):
                # An answer is longer than the acknowledgements of HTTP/2.
                if self.mode == "lose" and len(data) > 60:
                    self.lost += 1
                    self.mode = self.after_loss
                    break
                if self.mode == "refuse":
                    break
                writer.write(data)
                await writer.drain()
        writer.close()
