"""``strata mcp serve``: programs, pipes and sockets in front of a whole running Strata."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest

from command_line import Run
from mcp_clients import BY_EDITOR, PROGRAM, http_server, over_http, over_stdio, result_of, variables
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.api.gateway.v1 import admin_service_pb2 as admin_pb
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

OPENING = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"},
    },
}
POST = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


async def newest(system: System, agent: agent_pb.Agent, label: str) -> pb.BlockVersion:
    """The last version of a block."""
    block = await system.block(agent, label)
    request = pb.ListBlockVersionsRequest(block_id=block.id, page_size=1)
    version: pb.BlockVersion = (await system.blocks.ListBlockVersions(request)).versions[0]
    return version


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_program_reads_and_edits_over_stdio(
    system: System, ann: agent_pb.Agent, place: Mapping[str, str], tmp_path: Path, mode: str
) -> None:
    errors = tmp_path / "errors"
    async with over_stdio(place, errors, "--agent", ann.name, mode=mode) as client:
        assert client.server_info
        assert client.server_info.title == f"Memory of {ann.name}"
        resources = client.server_capabilities.resources
        assert resources is not None
        assert resources.subscribe
        listed = (await result_of(client, "list_memory_blocks"))["blocks"]
        assert [block["label"] for block in listed] == ["human", "persona"]
        done = await result_of(client, "core_memory_append", label="human", content="Likes tea.")
        assert done["revision"] == 2
        read = await result_of(client, "read_memory_block", label="human")
        assert read["value"].endswith("Likes tea.")
    assert (await system.block(ann, "human")).value == read["value"]
    version = await newest(system, ann, "human")
    assert (version.operation, version.origin.reason) == ("append", BY_EDITOR)
    assert version.origin.kind == pb.EDITOR_KIND_USER
    who = await system.admin.WhoAmI(admin_pb.WhoAmIRequest())
    assert version.principal == who.api_key.id
    assert errors.read_text() == ""


async def test_standard_output_holds_nothing_but_the_protocol(
    ann: agent_pb.Agent, place: Mapping[str, str]
) -> None:
    call = {"name": "read_memory_block", "arguments": {"label": "nowhere"}}
    lines = [
        json.dumps(OPENING),
        json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        "no message at all",
        json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}),
    ]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *PROGRAM, "--agent", ann.id),
        env=variables(place),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    answers: dict[Any, Any] = {}
    for line in lines:
        process.stdin.write(line.encode() + b"\n")
    while 2 not in answers:
        answer = json.loads(await process.stdout.readline())
        assert answer["jsonrpc"] == "2.0"
        answers[answer.get("id")] = answer
    # The server ends when its input ends.
    process.stdin.close()
    rest, errors = await process.communicate()
    assert (process.returncode, rest) == (0, b"")
    assert b"Traceback" not in errors
    assert answers[2]["result"]["isError"]
    assert "BLOCK_NOT_FOUND" in answers[2]["result"]["content"][0]["text"]


async def test_the_http_server_requires_its_token_and_an_allowed_host_name(
    system: System, ann: agent_pb.Agent, place: Mapping[str, str]
) -> None:
    async with http_server(place, "--agent", ann.id, "--allow-host", "memory.example") as served:
        url, token = served
        for mode in ("legacy", "auto"):
            async with over_http(url, token, mode) as client:
                await result_of(client, "memory_insert", label="human", new_str=f"Met {mode}.")
        assert (await system.block(ann, "human")).value.endswith("Met legacy.\nMet auto.")
        assert (await newest(system, ann, "human")).origin.reason == BY_EDITOR

        async with httpx2.AsyncClient() as http:

            async def status(method: str = "POST", **headers: str) -> int:
                sent = POST | {name.replace("_", "-"): text for name, text in headers.items()}
                body = json.dumps(OPENING) if method == "POST" else None
                answer = await http.request(method, url, headers=sent, content=body)
                if answer.status_code == 401:
                    assert answer.headers["www-authenticate"] == "Bearer"
                return answer.status_code

            right = f"Bearer {token}"
            assert await status() == 401
            assert await status("DELETE") == 401
            assert await status(Authorization=f"Bearer {token[:-1]}") == 401
            assert await status(Authorization=f"Basic {token}") == 401
            assert await status(Authorization=right) == 200
            assert await status(Authorization=right, Host="evil.example") == 421
            assert await status(Authorization=right, Host="memory.example") == 200
            assert await status(Authorization=right, Origin="http://evil.example") == 403
            modern = {"MCP_Protocol_Version": "2026-07-28"}
            assert await status(**modern) == 401
            assert await status(**modern, Authorization=right, Host="evil.example") == 421


async def test_unservable_settings_are_reported_at_the_start(
    strata: Run, ann: agent_pb.Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = ("mcp", "serve", "--agent", ann.name)
    open_to_all = await strata(*serve, "--http", "0", "--host", "0.0.0.0")
    assert (open_to_all.code, open_to_all.out) == (2, "")
    assert "Set STRATA_MCP_TOKEN" in open_to_all.err
    assert "need --http" in (await strata(*serve, "--host", "::1")).err
    monkeypatch.setenv("STRATA_MCP_TOKEN", "too short")
    short = await strata(*serve, "--http", "0")
    assert (short.code, "16 to 512" in short.err) == (2, True)
    monkeypatch.setenv("STRATA_MCP_TOKEN", "x" * 16)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = await strata(*serve, "--http", str(taken.getsockname()[1]))
    assert (busy.code, "Nothing can listen" in busy.err) == (2, True)
    stranger = await strata("mcp", "serve", "--agent", "nobody at all")
    assert (stranger.code, stranger.out) == (1, "")
    assert "AGENT_NOT_FOUND" in stranger.err
    with socket.create_server(("127.0.0.1", 0)) as gone:
        monkeypatch.setenv("STRATA_ADDRESS", f"127.0.0.1:{gone.getsockname()[1]}")
    absent = await strata(*serve)
    assert (absent.code, absent.out) == (3, "")
    assert "Start it with: strata up" in absent.err
