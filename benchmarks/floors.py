"""Floors: lower bounds of the measurements, taken in the same run and under the same load.

A turn of an agent has to store the user's message before the model request, has to make that
request, and has to store the reply. So no system of this kind can be faster than a commit that
waits for the disk, a hop from the client, and the model's own time.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import grpc.aio

from benchmarks.echo_server import METHOD
from benchmarks.processes import Child
from benchmarks.samples import Samples
from strata.shared.search.embedding.multilingual import MultilingualEmbedder

_KILOBYTE = b"x" * 1024
_DATABASE = "benchmarks"
_LARGE = ("messages", "tools")


async def create_database(admin_url: str, name: str) -> None:
    """Creates an empty database on Strata's server; replaces one of that name."""
    admin = await asyncpg.connect(admin_url)
    try:
        await admin.execute(f'DROP DATABASE IF EXISTS "{name}"')
        await admin.execute(f'CREATE DATABASE "{name}"')
    finally:
        await admin.close()


class CommitFloor:
    """Stores one row of 1 KB durably: one statement, one commit, one flush."""

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self.samples = Samples()
        self._connection = connection

    @classmethod
    async def open(cls, admin_url: str, url: str, stack: AsyncExitStack) -> CommitFloor:
        """Creates a separate database on Strata's server."""
        await create_database(admin_url, _DATABASE)
        connection = await asyncpg.connect(url)
        stack.push_async_callback(connection.close)
        await connection.execute(
            "CREATE TABLE rows (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body bytea)"
        )
        return cls(connection)

    async def measure(self, count: int) -> None:
        """Stores `count` rows, one after the other."""
        await self.samples.time(
            count,
            lambda: self._connection.execute("INSERT INTO rows (body) VALUES ($1)", _KILOBYTE),
        )


class HopFloor:
    """Makes one bare unary call of 1 KB to another process."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.samples = Samples()
        self._call: Any = channel.unary_unary(METHOD)

    @classmethod
    async def open(cls, folder: Path, stack: AsyncExitStack) -> HopFloor:
        """Starts the echo server."""
        child = Child(["-m", "benchmarks.echo_server"], {}, folder / "echo.log")
        stack.push_async_callback(child.stop)
        port = await child.line("PORT")
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        await stack.enter_async_context(channel)
        return cls(channel)

    async def measure(self, count: int) -> None:
        """Makes `count` calls, one after the other."""
        await self.samples.time(count, lambda: self._call(_KILOBYTE))


class ModelFloor:
    """Makes one model request over a bare connection: the model's own time.

    The request equals Strata's, byte for byte. The stream is read to the end but not parsed.
    """

    def __init__(self, url: str) -> None:
        self.samples = Samples()
        address = urlsplit(url)
        self._host, self._port = address.hostname or "", address.port or 80
        self._path = f"{address.path}/chat/completions"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._request = b""

    @classmethod
    def open(cls, url: str, stack: AsyncExitStack) -> ModelFloor:
        """Prepares calls; the connection is made at the first one."""
        floor = cls(url)
        stack.push_async_callback(floor.close)
        return floor

    def ask(self, body: bytes) -> None:
        """Sets the request."""
        head = (
            f"POST {self._path} HTTP/1.1\r\nhost: {self._host}\r\n"
            f"authorization: Bearer benchmark\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        self._request = head.encode() + body

    async def measure(self, count: int) -> None:
        """Makes `count` requests, one after the other."""
        await self.samples.time(count, self._exchange)

    async def apart(self, count: int) -> list[float]:
        """Makes `count` requests; returns their durations without adding them to the samples."""
        samples = Samples()
        await samples.time(count, self._exchange)
        return samples.values

    async def close(self) -> None:
        """Closes the connection."""
        if self._streams is not None:
            self._streams[1].close()
            await self._streams[1].wait_closed()

    async def _exchange(self) -> None:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        writer.write(self._request)
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            raise RuntimeError(f"the model refused: {head.decode(errors='replace')}")
        while size := int(await reader.readuntil(b"\r\n"), 16):
            await reader.readexactly(size + 2)
        await reader.readuntil(b"\r\n")


class SdkFloor:
    """Makes the same request through the official SDK, with its parsing of the stream.

    Long values are passed as extra body, because the SDK would transform all declared parameters
    by their types, which takes 0.3 ms per message.
    """

    def __init__(self, url: str) -> None:
        from openai import AsyncOpenAI  # noqa: PLC0415 - takes a second to import

        self.samples = Samples()
        self._client = AsyncOpenAI(base_url=url, api_key="benchmark", max_retries=0)
        self._body: dict[str, Any] = {}

    @classmethod
    def open(cls, url: str, stack: AsyncExitStack) -> SdkFloor:
        """Prepares calls."""
        floor = cls(url)
        stack.push_async_callback(floor._client.close)
        return floor

    def ask(self, body: bytes) -> None:
        """Sets the request."""
        request = json.loads(body)
        large = {name: request.pop(name) for name in _LARGE if name in request}
        self._body = {**request, "messages": [], "extra_body": large}

    async def measure(self, count: int) -> None:
        """Makes `count` requests, one after the other."""
        await self.samples.time(count, self._exchange)

    async def _exchange(self) -> None:
        stream = await self._client.chat.completions.create(**self._body)
        async for _ in stream:
            pass


class EmbeddingFloor:
    """Embeds one text of the same length as the inserted ones."""

    def __init__(self, embedder: MultilingualEmbedder) -> None:
        self.samples = Samples()
        self._embedder = embedder

    @classmethod
    async def open(cls, stack: AsyncExitStack) -> EmbeddingFloor:
        """Loads the model that Strata uses."""
        embedder = await MultilingualEmbedder.load()
        stack.push_async_callback(embedder.close)
        return cls(embedder)

    async def measure(self, texts: list[str]) -> None:
        """Embeds the texts, one after the other."""
        waiting = iter(texts)
        await self.samples.time(len(texts), lambda: self._embedder.embed([next(waiting)], "query"))
