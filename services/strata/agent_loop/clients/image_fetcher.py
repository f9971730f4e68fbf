"""Fetches images that clients name by URL, protected against server-side request forgery."""

from __future__ import annotations

import ssl
from contextlib import AsyncExitStack

from strata.agent_loop.settings import AgentLoopSettings
from strata.protocol.images import IMAGE_SUFFIXES, MAX_IMAGE_BYTES
from strata.shared.fair_slots import ANY_NUMBER, FairSlots
from strata.shared.web.errors import FetchError, ForbiddenUrlError
from strata.shared.web.fetcher import Fetcher, FetchLimits
from strata.shared.web.resolver import SystemResolver
from strata.shared.web.url_guard import Guard, Resolver, parse_url

# Each holds at most the bytes of one image.
_AT_ONCE = 20


class WebImageFetcher:
    """Implements `domain.ports.ImageFetcher`; projects share the number of fetches at once."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._slots = FairSlots(_AT_ONCE, "images by URL", queue=ANY_NUMBER)

    async def fetch(self, url: str) -> bytes:
        """Returns the content at an https URL."""
        if parse_url(url).scheme != "https":
            raise ForbiddenUrlError("Only https URLs are fetched.")
        async with self._slots.slot():
            answer = await self._fetcher.fetch(url, accept=", ".join(IMAGE_SUFFIXES))
        if not 200 <= answer.status < 300:
            raise FetchError(f"The server answered {answer.status_text}.")
        if answer.truncated:
            raise FetchError(f"The file is larger than {MAX_IMAGE_BYTES:,} bytes.")
        return answer.body


async def open_image_fetcher(
    settings: AgentLoopSettings,
    stack: AsyncExitStack,
    *,
    resolver: Resolver | None = None,
    ssl_context: ssl.SSLContext | None = None,
) -> WebImageFetcher:
    """Opens an image fetcher.

    Args:
        settings: Which networks and ports may be reached.
        stack: Closes the fetcher.
        resolver: Resolves host names; by default the system's resolver.
        ssl_context: Verifies servers; by default against the certificates of the system.
    """
    if resolver is None:
        resolver = SystemResolver()
        stack.callback(resolver.close)
    guard = Guard(
        resolver,
        private_networks=settings.image_private_networks,
        ports=settings.image_ports,
    )
    limits = FetchLimits(total_s=settings.image_fetch_timeout_s, body_bytes=MAX_IMAGE_BYTES)
    return WebImageFetcher(
        await stack.enter_async_context(Fetcher(guard, limits, ssl_context=ssl_context))
    )
