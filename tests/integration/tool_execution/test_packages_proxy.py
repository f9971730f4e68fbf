"""Packages fetched through a company's proxy, from an index with a certificate of its own."""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import replace
from pathlib import Path

import pytest
from uv import find_uv_bin

from certificates import issued
from strata.shared.sandbox import tool_interpreter
from strata.shared.web.url_guard import Guard
from strata.tool_execution.domain.packages import PackagesError
from strata.tool_execution.packages import Builder
from strata.tool_runner.egress.proxy import EgressProxy, ProxyLimits
from web_servers import Names, ok, raw_server
from wheel_files import make_wheel


async def test_packages_are_fetched_through_the_proxy_and_the_certificate_is_checked(
    tmp_path: Path,
) -> None:
    authority, pem, key = issued(tmp_path, "index.example.com")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(pem, key)
    wheel = make_wheel(tmp_path, "tidal")
    async with raw_server(serving) as index:
        link = f'<a href="/{wheel.name}">{wheel.name}</a>'
        index.answers["/simple/tidal/"] = ok(link.encode(), "text/html", "Connection: close")
        index.answers[f"/{wheel.name}"] = ok(
            wheel.read_bytes(), "application/octet-stream", "Connection: close"
        )
        guard = Guard(Names(), private_networks=["127.0.0.0/8"], ports=[index.port])
        proxy = EgressProxy(["index.example.com"], guard, ProxyLimits())
        listener = socket.create_server(("127.0.0.1", 0))
        builder = Builder(
            find_uv_bin(),
            tool_interpreter(),
            index_url=f"https://index.example.com:{index.port}/simple/",
            proxy=f"http://me:hidden@127.0.0.1:{listener.getsockname()[1]}",
            ca_file=authority,
        )
        await proxy.serve(listener)
        try:
            good = await _build(builder, tmp_path / "good")
            assert (good / "tidal.py").read_text() == "VERSION = '1.0'\n"
            assert index.heads
            with pytest.raises(PackagesError, match="certificate") as caught:
                await _build(replace(builder, ca_file=None), tmp_path / "bad")
            assert "STRATA_TOOL_EXECUTION_PACKAGES_CA_FILE" in str(caught.value)
            assert "--" not in str(caught.value)
            assert "hidden" not in str(caught.value)
        finally:
            await proxy.close()


async def _build(builder: Builder, folder: Path) -> Path:
    await asyncio.to_thread(folder.mkdir)
    with (folder / "lock").open("w") as lock:
        return await builder.build(["tidal"], folder, lock.fileno())
