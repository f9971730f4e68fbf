"""``strata mcp serve`` with the official MCP SDK for Node."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mcp_clients import PROGRAM, http_server, variables
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")
_NODE = shutil.which("node")
_CLIENT = Path(__file__).parents[2] / "node/client.mjs"


async def seen(place: Mapping[str, str], *arguments: str) -> Any:
    """Returns the report of the Node client."""
    assert _NODE is not None
    process = await asyncio.create_subprocess_exec(
        *(_NODE, str(_CLIENT), *arguments),
        env=variables(place),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return json.loads(out)


@pytest.mark.skipif(_NODE is None, reason="needs Node")
@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_a_client_of_node_writes_and_reads(
    system: System, ann: agent_pb.Agent, place: Mapping[str, str], kind: str
) -> None:
    if kind == "stdio":
        session = await seen(place, "stdio", sys.executable, *PROGRAM, "--agent", ann.id)
    else:
        async with http_server(place, "--agent", ann.id) as (url, token):
            session = await seen(place, "http", url, token)
    assert {"list_memory_blocks", "read_memory_block", "core_memory_append"} <= set(
        session["tools"]
    )
    assert not session["written"].get("isError")
    assert json.loads(session["read"]["content"][0]["text"])["value"].endswith("Likes coffee.")
    assert session["wrong"]["isError"]
    assert session["resources"]
    assert (await system.block(ann, "human")).value.endswith("Likes coffee.")
