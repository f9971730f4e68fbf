"""Real clients of `strata mcp serve`, over pipes, sockets, or in this process."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from child_processes import SOURCE_PATH

PROGRAM = ("-c", "from strata.cli.main import main; main()", "mcp", "serve")
EDITOR = types.Implementation(name="ed", title="Ed the Editor", version="7.1")
BY_EDITOR = "through MCP, by Ed the Editor 7.1"


def variables(place: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of a server: only the address and the key of Strata."""
    return {"PYTHONPATH": SOURCE_PATH, "PATH": os.defpath, **place}


@asynccontextmanager
async def over_stdio(
    place: Mapping[str, str], errors: Path, *arguments: str, mode: str = "legacy"
) -> AsyncIterator[Client]:
    """Starts the server as a client does; its error output goes to `errors`."""
    started = StdioServerParameters(
        command=sys.executable, args=[*PROGRAM, *arguments], env=variables(place)
    )
    with errors.open("w") as log:
        transport = stdio_client(started, errlog=log)
        async with Client(transport, client_info=EDITOR, mode=mode) as client:
            yield client


@asynccontextmanager
async def over_http(url: str, token: str, mode: str = "legacy") -> AsyncIterator[Client]:
    """Connects to a server that runs."""
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, client_info=EDITOR, mode=mode) as client:
            yield client


@asynccontextmanager
async def http_server(place: Mapping[str, str], *arguments: str) -> AsyncIterator[tuple[str, str]]:
    """Starts the server with HTTP; yields its URL and its token."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *PROGRAM,
        *("--http", "0"),
        *arguments,
        env=variables(place),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        output = ""
        while "Token until the server stops" not in output:
            line = (await process.stderr.readline()).decode()
            assert line, f"it ended: {output}"
            output += line
        [url] = re.findall(r"at (http://\S+)", output)
        [token] = re.findall(r"stops: (\S+)", output)
        yield url, token
    finally:
        process.terminate()
        out, _ = await process.communicate()
    assert out == b""


async def result_of(client: Client, tool: str, /, **arguments: Any) -> Any:
    """Calls a tool that must succeed; returns its structured result or, without one, its text."""
    result = await client.call_tool(tool, arguments)
    [content] = result.content
    assert isinstance(content, types.TextContent)
    assert not result.is_error, content.text
    return content.text if result.structured_content is None else result.structured_content


async def refused(client: Client, tool: str, /, **arguments: Any) -> str:
    """Calls a tool that must fail; returns the error message."""
    result = await client.call_tool(tool, arguments)
    [content] = result.content
    assert isinstance(content, types.TextContent)
    assert result.is_error, content.text
    assert "Traceback" not in content.text
    return content.text
