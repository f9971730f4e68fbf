"""The real model, and a real HTTP server that speaks `/v1/embeddings`."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio

from strata.shared.search.embedding.minilm import MiniLmEmbedder
from strata.shared.search.embedding.multilingual import MultilingualEmbedder


@dataclass
class Reply:
    """The answer of the server to one request."""

    status: int = 200
    body: dict[str, Any] | bytes = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False


def vectors_reply(request: dict[str, Any], dim: int = 4) -> Reply:
    """One vector per input, which depends on its length, in reverse order as the API allows."""
    data = [
        {"object": "embedding", "index": place, "embedding": [float(len(text)), 3.0] + [0.0] * 2}
        for place, text in enumerate(request["input"])
    ]
    for item in data:
        item["embedding"] = item["embedding"][:dim] + [0.0] * (dim - 4)  # type: ignore[index]
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    body = {"object": "list", "data": data[::-1], "model": request["model"], "usage": usage}
    return Reply(body=body)


class EmbeddingServer:
    """A small HTTP/1.1 server; `script` makes the replies, `requests` records the requests."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.authorizations: list[str] = []
        self.script: Callable[[dict[str, Any]], Reply] = vectors_reply
        self.base_url = ""
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.base_url = f"http://127.0.0.1:{port}/v1"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
            raw = await reader.readexactly(int(headers["content-length"]))
            assert head[0].startswith("POST /v1/embeddings ")
            request = json.loads(raw)
            self.requests.append(request)
            self.authorizations.append(headers.get("authorization", ""))
            reply = self.script(request)
            if not reply.cut:
                body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body)
                content = body if isinstance(body, bytes) else body.encode()
                lines = [f"HTTP/1.1 {reply.status} X", "content-type: application/json"]
                lines += [f"{name}: {value}" for name, value in reply.headers.items()]
                lines += [f"content-length: {len(content)}", "connection: close", "", ""]
                writer.write("\r\n".join(lines).encode() + content)
                await writer.drain()
        finally:
            writer.close()


@pytest.fixture
async def server() -> AsyncIterator[EmbeddingServer]:
    running = EmbeddingServer()
    await running.start()
    yield running
    await running.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def minilm() -> AsyncIterator[MiniLmEmbedder]:
    embedder = await MiniLmEmbedder.load()
    yield embedder
    await embedder.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def multilingual() -> AsyncIterator[MultilingualEmbedder]:
    embedder = await MultilingualEmbedder.load()
    yield embedder
    await embedder.close()
