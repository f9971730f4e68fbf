"""Discovers model servers that already run on this machine."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Sequence
from dataclasses import dataclass

import httpx2

PROBE_SECONDS = 1.0
_MAX_ANSWER_BYTES = 1 << 20
# Model servers list all their models. These parts of a name mark models that cannot chat.
_NOT_FOR_CHAT = (
    *("embed", "bge-", "gte-", "e5-", "minilm", "rerank", "colbert", "clip"),
    *("whisper", "tts", "kokoro", "stable-diffusion", "flux"),
)


@dataclass(frozen=True)
class UsualAddress:
    """The address at which a known model server listens by default.

    Attributes:
        product: The product's name.
        base_url: Address of its OpenAI-compatible API.
    """

    product: str
    base_url: str


@dataclass(frozen=True)
class LocalServer:
    """A server that answered.

    Attributes:
        product: The product whose usual port it listens on.
        base_url: Address of its OpenAI-compatible API.
        models: Its models that can chat, in its own order; never empty.
    """

    product: str
    base_url: str
    models: tuple[str, ...]


async def discover(
    addresses: Sequence[UsualAddress], seconds: float = PROBE_SECONDS
) -> list[LocalServer]:
    """Queries all addresses concurrently.

    Args:
        addresses: Where the servers of known products listen by default.
        seconds: Time limit for the answer of one server.

    Returns:
        The servers that have a model to chat with, in the order of `addresses`.
    """
    # Proxies of the environment are not for loopback, and a redirect is not a model server. Nor has
    # loopback TLS: by default the client would load the certificates of the system, which takes
    # 25 ms of CPU time.
    no_certificates = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    async with httpx2.AsyncClient(
        trust_env=False, follow_redirects=False, verify=no_certificates
    ) as client:
        servers = await asyncio.gather(*(_probe(client, address, seconds) for address in addresses))
    return [server for server in servers if server is not None]


_LIST_S = 5.0


async def models_of(base_url: str, api_key: str = "") -> tuple[str, ...]:
    """Returns the models of an OpenAI-compatible server that can chat; empty if it has none.

    Args:
        base_url: Root of its API.
        api_key: Sent as a bearer token; empty for a server without keys.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        async with asyncio.timeout(_LIST_S), httpx2.AsyncClient(headers=headers) as client:
            return chat_models(await _read(client, f"{base_url.rstrip('/')}/models"))
    except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError):
        return ()


async def _probe(
    client: httpx2.AsyncClient, address: UsualAddress, seconds: float
) -> LocalServer | None:
    try:
        async with asyncio.timeout(seconds):
            answer = await _read(client, f"{address.base_url}/models")
    except (httpx2.HTTPError, TimeoutError):
        return None
    models = chat_models(answer)
    return LocalServer(address.product, address.base_url, models) if models else None


async def _read(client: httpx2.AsyncClient, url: str) -> bytes:
    """Returns the body of an answer with status 200; empty for another status or a long body."""
    async with client.stream("GET", url) as response:
        if response.status_code != httpx2.codes.OK:
            return b""
        body = bytearray()
        async for block in response.aiter_bytes():
            body += block
            if len(body) > _MAX_ANSWER_BYTES:
                return b""
        return bytes(body)


def chat_models(answer: bytes) -> tuple[str, ...]:
    """Returns the models that can chat from a `/v1/models` answer; empty if it is malformed."""
    try:
        listing = json.loads(answer)
    except (ValueError, RecursionError):
        return ()
    entries = listing.get("data") if isinstance(listing, dict) else None
    if not isinstance(entries, list):
        return ()
    names = [entry.get("id") for entry in entries if isinstance(entry, dict)]
    return tuple(name for name in names if isinstance(name, str) and _can_chat(name))


def _can_chat(name: str) -> bool:
    lowered = name.lower()
    return bool(name.strip()) and not any(mark in lowered for mark in _NOT_FOR_CHAT)
