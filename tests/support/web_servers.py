"""Servers on loopback that answer with given bytes."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]


_MISSING = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


class RawServer:
    """Answers each path with given bytes, or with a function that gets the connection."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            await self._answer(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            writer.close()
            self.tasks.discard(task)

    async def close(self) -> None:
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        self.heads.append(head)
        for line in head.split("\r\n"):
            if line.lower().startswith("content-length:"):
                self.bodies.append(await reader.readexactly(int(line.split(":")[1])))
        path = head.split(" ")[1]
        answer = self.answers.get(path, self.answers.get(path.partition("?")[0], _MISSING))
        if callable(answer):
            await answer(writer)
        else:
            writer.write(answer)
        await writer.drain()


def ok(body: bytes, content_type: str = "text/html", *headers: str) -> bytes:
    """Returns an answer with status 200."""
    lines = ["HTTP/1.1 200 OK", f"Content-Type: {content_type}", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


def redirect(location: str, status: int = 302) -> bytes:
    """Returns a redirect."""
    return f"HTTP/1.1 {status} Moved\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()


class Names:
    """A resolver with scripted answers, the last of which is repeated; counts its queries."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers or [["127.0.0.1"]])
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextlib.asynccontextmanager
async def raw_server(
    context: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[RawServer]:
    """Starts a server; with an SSL context it uses TLS."""
    raw = RawServer()
    listening = await asyncio.start_server(raw.serve, host, 0, ssl=context)
    raw.port = listening.sockets[0].getsockname()[1]
    try:
        yield raw
    finally:
        listening.close()
        await raw.close()
