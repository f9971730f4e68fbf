"""A TCP relay on loopback whose connections a test breaks or delays."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Self

_TURNS = 20


class TcpRelay:
    """Forwards connections to an address, always from the same port.

    Args:
        target: ``host:port`` of the peer.
        delay_s: Seconds before each chunk is forwarded.

    Attributes:
        count: Number of accepted connections.
    """

    def __init__(self, target: str, *, delay_s: float = 0.0) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._delay_s = delay_s
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting: set[asyncio.Future[object]] = set()
        self._own_port = 0
        self.count = 0

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
        # A connection that was accepted just before needs some iterations of the loop to be made
        # and closed. Otherwise its transport would outlive the loop, unclosed.
        for _turn in range(_TURNS):
            await asyncio.sleep(0)
        await asyncio.gather(*self._accepting)
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def address(self) -> str:
        """The address of the relay."""
        return f"127.0.0.1:{self._own_port}"

    async def open(self) -> None:
        """Accepts connections."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._own_port)
        self._own_port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Breaks all connections; further ones are refused until `open` is called again."""
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    def admits(self) -> bool:
        """Returns whether a new connection is forwarded."""
        return True

    def loses(self, data: bytes) -> bool:  # for subclasses
        """Returns whether these bytes of the peer are dropped and the connection is closed."""
        return False

    def cut(self) -> None:
        """Breaks all connections."""
        for writer in list(self._writers):
            writer.transport.abort()
        self._writers.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended = asyncio.get_running_loop().create_future()
        self._accepting.add(ended)
        try:
            await self._connect(reader, writer)
        finally:
            self._accepting.discard(ended)
            ended.set_result(None)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.count += 1
        # A connection may have been accepted just before the end.
        if self._is_closed() or not self.admits():
            writer.close()
            return
        self._writers.add(writer)
        try:
            there_reader, there = await asyncio.open_connection(self._host, self._port)
        except OSError:
            self._writers.discard(writer)
            writer.close()
            return
        if writer.transport.is_closing() or self._is_closed():
            self._writers.discard(writer)
            writer.close()
            there.close()
            return
        self._writers.add(there)
        for passing in (self._pass(reader, there), self._pass(there_reader, writer, self.loses)):
            task = asyncio.create_task(passing)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _is_closed(self) -> bool:
        return self._server is None or not self._server.is_serving()

    async def _pass(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        loses: Callable[[bytes], bool] = lambda _: False,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                if loses(data):
                    break
                await asyncio.sleep(self._delay_s)
                sink.write(data)
                await sink.drain()
        self._writers.discard(sink)
        sink.close()
