"""Third-party MCP servers from the registries of Python and Node."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from child_processes import descendants
from doubles.script import Call, Reply, say
from mcp_support import Mcp, names, python_with_packages
from polling import eventually
from strata.api.tool_execution.v1 import mcp_service_pb2 as pb

pytestmark = pytest.mark.asyncio(loop_scope="session")
_NODE = shutil.which("node")
_EVERYTHING = (
    Path(__file__).parents[2]
    / "node/node_modules/@modelcontextprotocol/server-everything/dist/index.js"
)
needs_node = pytest.mark.skipif(_NODE is None, reason="needs Node")


def everything(*arguments: str) -> list[str]:
    assert _NODE is not None
    assert _EVERYTHING.exists(), "run `make test` once: it fetches the servers"
    return [_NODE, str(_EVERYTHING), *arguments]


@asynccontextmanager
async def serving(kind: str) -> AsyncIterator[str]:
    """Runs the server of Node over HTTP; yields its root."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        *everything(kind),
        env={**os.environ, "PORT": str(port)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    output = b""
    try:
        while b"on port" not in (line := await process.stderr.readline()):
            output += line
            assert line, f"it ended before it listened: {output.decode()}"
        drained = asyncio.create_task(process.stderr.read())
        yield f"http://127.0.0.1:{port}"
        process.kill()
        await drained
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_a_python_server_returns_the_time(mcp: Mcp) -> None:
    python, variables = python_with_packages()
    command = [python, "-m", "mcp_server_time", "--local-timezone", "Europe/Vienna"]
    server = await mcp.add("clock", command=command, environment=variables)
    assert names(server.tools) == ["clock__convert_time", "clock__get_current_time"], server.error
    text = await mcp.run(
        "clock__convert_time",
        source_timezone="Europe/Vienna",
        time="12:00",
        target_timezone="Asia/Tokyo",
    )
    assert text["target"]["timezone"] == "Asia/Tokyo"
    assert text["time_difference"] in ("+7.0h", "+8.0h")
    assert "Invalid timezone" in await mcp.refused("clock__get_current_time", timezone="Asia/No")
    # The program is killed between two calls, and starts again for the second. As long as the
    # process exists, if only for a thread that has not ended, a request may still reach it.
    [process] = descendants("mcp_server_time")
    process.kill()
    await eventually(lambda: not psutil.pid_exists(process.pid))
    assert (await mcp.run("clock__get_current_time", timezone="UTC"))["timezone"] == "UTC"


@needs_node
async def test_a_server_of_node_works_over_stdio(mcp: Mcp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATA_MASTER_SECRET", "of the operator")
    server = await mcp.add("every", command=everything("stdio"), environment={"COLOUR": "green"})
    assert "every__echo" in names(server.tools), server.error
    # Of all tools of the server, one cannot be called.
    assert dict(server.quarantined_tools) == {
        "simulate-research-query": "it runs only as a task, which is not supported"
    }
    await several(mcp)
    variables = json.loads(await mcp.run("every__get-env"))
    assert variables["COLOUR"] == "green"
    assert not [name for name in variables if name.startswith("STRATA_")]
    # Progress and unsolicited messages have no effect on calls.
    assert "Started" in await mcp.run("every__toggle-simulated-logging")
    text = await mcp.run("every__trigger-long-running-operation", duration=0.2, steps=4)
    assert "Steps: 4" in text


@needs_node
@pytest.mark.parametrize("kind", ["streamableHttp", "sse"])
async def test_a_server_of_node_works_over_http(mcp: Mcp, kind: str) -> None:
    streamable = kind == "streamableHttp"
    async with serving(kind) as root:
        server = await mcp.add(
            "every",
            url=f"{root}/mcp" if streamable else f"{root}/sse",
            transport=pb.MCP_TRANSPORT_STREAMABLE_HTTP if streamable else pb.MCP_TRANSPORT_SSE,
        )
        assert "every__echo" in names(server.tools), server.error
        await several(mcp)
        text = await mcp.run("every__trigger-long-running-operation", duration=0.2, steps=4)
        assert "Steps: 4" in text
    # The server is gone: the call is refused at once, without waiting.
    assert "every" in await mcp.refused("every__echo", message="Are you there?")


async def several(mcp: Mcp) -> None:
    """Calls tools with answers of different kinds."""
    assert await mcp.run("every__echo", message="Grüß Gott") == "Echo: Grüß Gott"
    assert "is 5" in await mcp.run("every__get-sum", a=2, b=3)
    weather = await mcp.run("every__get-structured-content", location="Chicago")
    assert weather == {"temperature": 36, "conditions": "Light rain / drizzle", "humidity": 82}
    assert "[image 1: image/png, " in await mcp.run("every__get-tiny-image")
    links = await mcp.run("every__get-resource-links", count=2)
    assert links.count("not read]") == 2
    read = await mcp.run("every__get-resource-reference", resourceType="Text", resourceId=1)
    assert "This is a plaintext resource" in read
    noted = await mcp.run("every__get-annotated-message", messageType="error", includeImage=False)
    assert "Error" in noted
    refused = await mcp.refused("every__get-structured-content", location="Graz")
    assert "location" in refused


@needs_node
async def test_an_agent_uses_servers_of_both(mcp: Mcp) -> None:
    python, variables = python_with_packages()
    await mcp.add("clock", command=[python, "-m", "mcp_server_time"], environment=variables)
    await mcp.add("every", command=everything("stdio"))
    agent = await mcp.services.make_agent(tools=["clock__get_current_time", "every__get-sum"])
    mcp.services.model.script(
        Reply(
            calls=(
                Call("clock__get_current_time", {"timezone": "UTC"}),
                Call("every__get-sum", {"a": 40, "b": 2}),
            )
        ),
        say("Done."),
    )
    ran = await mcp.services.run(agent, "What time is it, and what is 40 and 2?")
    returns: list[Any] = [json.loads(returned.content) for returned in ran.tool_returns]
    assert [tool_return["status"] for tool_return in returns] == ["OK", "OK"]
    assert returns[0]["message"]["timezone"] == "UTC"
    assert "42" in returns[1]["message"]
