"""The programs of the guides run."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from child_processes import SOURCE_PATH
from doubles.script import Call, Reply, say
from strata.api.agent_loop.v1.agent_service_pb2 import DeleteAgentRequest, GetAgentRequest
from strata.api.tool_execution.v1.tool_service_pb2 import (
    DeleteToolRequest,
    GetToolRequest,
    ListToolsRequest,
)
from strata.client import Client
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

GUIDES = Path(__file__).parents[3] / "docs" / "guides"


async def test_the_program_of_the_guide_runs_twice(system: System, tmp_path: Path) -> None:
    for _ in range(2):
        await run_the_program(system, tmp_path)


DRAFT = 'def word_count(text: str) -> int:\n    """Counts words."""\n    return len(txt.split())\n'
FINISHED = DRAFT.replace("txt", "text")


@pytest.mark.parametrize(("answer", "stored"), [("y", True), ("n", False)])
async def test_the_program_of_the_agent_that_writes_tools_runs(
    system: System, client: Client, tmp_path: Path, answer: str, stored: bool
) -> None:
    arguments = json.dumps({"text": "one two three"})
    system.model.script(
        Reply(calls=(Call("try_tool", {"source_code": DRAFT, "arguments": arguments}),)),
        Reply(calls=(Call("try_tool", {"source_code": FINISHED, "arguments": arguments}),)),
        Reply(calls=(Call("offer_tool", {"source_code": FINISHED}),)),
        say("Done."),
    )
    try:
        lines = await run_program(system, "tool-writing-agent.md", tmp_path, answer)
        requests = system.model.requests
        assert "You are an expert Python programmer" in requests[0].system
        returns = [
            json.loads(message["content"])["message"]
            for message in requests[-1].body["messages"]
            if message["role"] == "tool"
        ]
        assert "NameError" in returns[0]
        assert json.loads(returns[1]) == {"returned": "3", "printed": []}
        expected = "The tool is stored as word_count." if stored else "The person does not want"
        assert returns[2].startswith(expected)
        assert lines[-1].endswith("Done.")
        names = [tool.name for tool in (await client.tools.ListTools(ListToolsRequest())).tools]
        assert ("word_count" in names) is stored
    finally:
        response = await client.agents.GetAgent(GetAgentRequest(name="toolsmith"))
        await client.agents.DeleteAgent(DeleteAgentRequest(agent_id=response.agent.id))
        if stored:
            tool = (await client.tools.GetTool(GetToolRequest(name="word_count"))).tool
            await client.tools.DeleteTool(DeleteToolRequest(tool_id=tool.id))


async def test_the_example_calls_of_the_guide_run(client: Client) -> None:
    section = (GUIDES / "python.md").read_text("utf-8").partition("\n## Calls\n")[2]
    code = section.partition("```python\n")[2].partition("```")[0].replace("gpt-5", "test-model")
    names: dict[str, Any] = {}
    exec(f"async def run(client):\n{textwrap.indent(code, '    ')}    return agent, block", names)
    agent, block = await names["run"](client)
    assert (await client.blocks.get(block)).value == "Ann, of Porto"
    await client.agents.delete(agent)


async def run_the_program(system: System, tmp_path: Path) -> None:
    system.model.script(
        Reply(calls=(Call("convert", {"amount": 11, "source": "usd"}),)), say("Ten euros.")
    )
    lines = await run_program(system, "python.md", tmp_path)
    assert lines[:2] == ["tried: 10.0", "Ten euros."]
    assert lines[2].startswith("missing: ")
    assert system.model.requests[-1].answered


async def run_program(system: System, page: str, tmp_path: Path, answer: str = "") -> list[str]:
    """Runs the first program of a guide; returns the lines that it printed."""
    program, *_ = re.findall(r"```python\n(.*?)```", (GUIDES / page).read_text("utf-8"), re.DOTALL)
    file = tmp_path / "program.py"
    file.write_text(program)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(file),
        env={
            "PYTHONPATH": SOURCE_PATH,
            "PATH": os.defpath,
            "STRATA_ADDRESS": system.address,
            "STRATA_API_KEY": system.key,
        },
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(f"{answer}\n".encode()), 60)
    assert process.returncode == 0, err.decode()
    return out.decode().splitlines()
