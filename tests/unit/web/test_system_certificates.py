"""The certificates of the system are read once per process, for all clients."""

from __future__ import annotations

import ssl
from typing import Any

import httpcore2
import pytest

from strata.agent_loop.models.anthropic_api import messages
from strata.agent_loop.models.openai_api import azure, chat_completions
from strata.shared.web.fetcher import Fetcher
from strata.shared.web.resolver import SystemResolver
from strata.shared.web.system_certificates import system_ssl_context
from strata.shared.web.url_guard import Guard


async def test_clients_read_the_certificates_once(monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = []

    def read(**_: Any) -> ssl.SSLContext:
        contexts.append(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        return contexts[-1]

    monkeypatch.setattr(httpcore2, "default_ssl_context", read)
    system_ssl_context.cache_clear()
    resolver = SystemResolver()
    try:
        for _ in range(2):
            for client in (
                chat_completions.open_client("", "key"),
                azure.open_client("https://resource.openai.azure.com", "key"),
                messages.open_client("", "key"),
            ):
                await client.close()
            await Fetcher(Guard(resolver)).aclose()
        assert contexts == [system_ssl_context()]
    finally:
        resolver.close()
        system_ssl_context.cache_clear()
