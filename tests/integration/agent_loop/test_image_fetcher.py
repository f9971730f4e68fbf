"""Fetching images that clients name by URL, over real sockets."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from callers import as_project
from certificates import self_signed
from image_samples import padded, png
from strata.agent_loop.clients.image_fetcher import WebImageFetcher, open_image_fetcher
from strata.agent_loop.settings import AgentLoopSettings
from strata.protocol.images import MAX_IMAGE_BYTES
from strata.shared import context
from strata.shared.web.errors import FetchError, ForbiddenUrlError
from web_servers import Names, RawServer, ok, raw_server, redirect

HOST = "pictures.example.com"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RawServer]:
    pem, key = self_signed(tmp_path, [HOST])
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(pem, key)
    async with raw_server(serving) as raw:
        yield raw


async def opened(
    server: RawServer, tmp_path: Path, stack: AsyncExitStack, **settings: object
) -> WebImageFetcher:
    usual = {"image_private_networks": ("127.0.0.0/8",), "image_ports": (server.port,)}
    return await open_image_fetcher(
        AgentLoopSettings(**{**usual, **settings}),  # type: ignore[arg-type]
        stack,
        resolver=Names(),
        ssl_context=ssl.create_default_context(cafile=str(tmp_path / "certificate.pem")),
    )


def url(server: RawServer, path: str = "/cat.png") -> str:
    return f"https://{HOST}:{server.port}{path}"


async def test_an_image_is_fetched_unchanged_also_after_a_redirect(
    server: RawServer, tmp_path: Path
) -> None:
    largest = padded(png(), MAX_IMAGE_BYTES)
    server.answers["/cat.png"] = ok(largest, "image/png")
    server.answers["/moved"] = redirect("/cat.png")
    async with AsyncExitStack() as stack:
        fetcher = await opened(server, tmp_path, stack)
        assert await fetcher.fetch(url(server)) == largest
        assert await fetcher.fetch(url(server, "/moved")) == largest
    assert "Accept: image/png, image/jpeg, image/gif, image/webp\r\n" in server.heads[0]


async def test_unusable_images_have_clear_errors(server: RawServer, tmp_path: Path) -> None:
    server.answers["/large"] = ok(padded(png(), MAX_IMAGE_BYTES + 1), "image/png")
    async with AsyncExitStack() as stack:
        fetcher = await opened(server, tmp_path, stack)
        with pytest.raises(FetchError, match="404 Not Found"):
            await fetcher.fetch(url(server, "/missing"))
        with pytest.raises(FetchError, match="larger than 3,932,160 bytes"):
            await fetcher.fetch(url(server, "/large"))
        with pytest.raises(ForbiddenUrlError, match="Only https"):
            await fetcher.fetch(f"http://{HOST}:{server.port}/cat.png")


async def test_private_networks_and_other_ports_are_refused_unless_allowed(
    server: RawServer, tmp_path: Path
) -> None:
    for closed in ({"image_private_networks": ()}, {"image_ports": (443,)}):
        async with AsyncExitStack() as stack:
            fetcher = await opened(server, tmp_path, stack, **closed)
            with pytest.raises(ForbiddenUrlError):
                await fetcher.fetch(url(server))
    assert server.heads == []


async def test_slow_servers_of_one_project_leave_fetches_for_another() -> None:
    slow = asyncio.Event()
    fetching: list[str] = []

    class SlowWeb:
        async def fetch(self, url: str, *, accept: str) -> SimpleNamespace:
            fetching.append(url)
            if "slow" in url:
                await slow.wait()
            return SimpleNamespace(status=200, truncated=False, body=png())

    web: Any = SlowWeb()
    fetcher = WebImageFetcher(web)
    urls = [f"https://slow.example/{n}" for n in range(30)]
    with context.use(as_project()):
        waiting = [asyncio.create_task(fetcher.fetch(url)) for url in urls]
        await asyncio.sleep(0)
    with context.use(as_project()):
        assert await fetcher.fetch("https://fast.example/") == png()
    assert len(fetching) == 16
    slow.set()
    await asyncio.gather(*waiting)
    assert len(fetching) == 31
