"""MCP servers for tests, and a project with MCP servers."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest
import uvicorn

from inner_services import InnerServices
from integration.sandbox.jails import interpreter
from polling import eventually
from strata.api.common.v1 import message_pb2
from strata.api.tool_execution.v1 import execution_service_pb2 as execution_pb
from strata.api.tool_execution.v1 import execution_service_pb2_grpc as execution_grpc
from strata.api.tool_execution.v1 import mcp_service_pb2 as pb
from strata.api.tool_execution.v1 import mcp_service_pb2_grpc as pb_grpc
from strata.api.tool_execution.v1 import tool_service_pb2 as tool_pb
from strata.api.tool_execution.v1 import tool_service_pb2_grpc as tool_grpc
from strata.protocol.errors import NotFoundError
from strata.shared.ids import new_id

DOUBLES = Path(__file__).parents[1] / "doubles"
ANYTHING = {"type": "object", "additionalProperties": True}


def tool(name: str, description: str = "", schema: Any = None) -> dict[str, Any]:
    """Returns a tool as a server lists it."""
    listed = {"name": name, "description": description or f"Does {name}."}
    return {**listed, "inputSchema": ANYTHING if schema is None else schema}


def program_command() -> list[str]:
    """Returns the command of the server that needs only the standard library."""
    # As root, programs run as another user.
    python = interpreter() if os.geteuid() == 0 else sys.executable
    return [python, "-I", "-S", str(DOUBLES / "mcp_program.py")]


def python_with_packages() -> tuple[str, dict[str, str]]:
    """Returns a Python interpreter and the variables with which it finds our packages."""
    if os.geteuid() != 0:
        return sys.executable, {}
    # As root, programs run as another user, who may have no access to our Python.
    python = interpreter()
    version = f"import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    if subprocess.run([python, "-I", "-S", "-c", version], check=False).returncode:
        pytest.skip("no Python of this version here can be run by another user")
    return python, {"PYTHONPATH": str(Path(uvicorn.__file__).parents[1])}


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that the user of the programs can access; pytest's folders are private."""
    with tempfile.TemporaryDirectory(prefix="strata-test-mcp-") as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder


@dataclass
class Tools:
    """The file from which an MCP program reads the tools that it lists."""

    file: Path

    def write(self, *tools: Any) -> None:
        """Replaces the tools."""
        self.file.write_text(json.dumps(tools))


@dataclass
class Mcp:
    """A project with MCP servers, which are removed when the block is left."""

    services: InnerServices
    folder: Path
    added: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        channel = self.services.channel("tool_execution")
        self.servers = pb_grpc.McpServiceStub(channel)
        self.registry = tool_grpc.ToolServiceStub(channel)
        self.execution = execution_grpc.ExecutionServiceStub(channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Removes the servers that were added."""
        for server_id in self.added:
            with suppress(NotFoundError):
                await self.remove(server_id)

    async def add(self, name: str, **fields: Any) -> pb.McpServer:
        """Adds a server; it is removed after the test."""
        fields.setdefault("transport", pb.MCP_TRANSPORT_STDIO)
        server = pb.McpServer(name=name, **fields)
        request = pb.AddMcpServerRequest(server=server, request_id=new_id("request"))
        added: pb.McpServer = (await self.servers.AddMcpServer(request)).server
        self.added.append(added.id)
        return added

    async def program(self, name: str, *tools: Any, **fields: Any) -> tuple[pb.McpServer, Tools]:
        """Adds an MCP program with these tools."""
        listed = Tools(self.folder / f"{name}.json")
        listed.write(*tools)
        command = [*program_command(), str(listed.file)]
        return await self.add(name, command=command, **fields), listed

    async def states(self, server: pb.McpServer) -> dict[str, pb.McpTool]:
        """Returns the states of the tools of a server, by name."""
        response = await self.servers.ListMcpTools(pb.ListMcpToolsRequest(mcp_server_id=server.id))
        return {tool.name: tool for tool in response.tools}

    async def refresh(self, server: pb.McpServer) -> pb.RefreshMcpServerResponse:
        """Reads the tools again."""
        request = pb.RefreshMcpServerRequest(mcp_server_id=server.id)
        answer: pb.RefreshMcpServerResponse = await self.servers.RefreshMcpServer(request)
        return answer

    async def offered(self, *names: str) -> list[str]:
        """Returns the tools that an agent is offered."""
        request = execution_pb.ResolveToolsRequest(names=names, skip_missing=True)
        return [tool.name for tool in (await self.execution.ResolveTools(request)).tools]

    async def finish(self, name: str, /, **arguments: Any) -> execution_pb.FinishedCall:
        """Runs one tool call like the agent loop."""
        call = execution_pb.ToolCall(
            tool_call_id="call-1", name=name, arguments=json.dumps(arguments), idempotency_key="k"
        )
        request = execution_pb.ExecuteToolsRequest(
            agent_id=new_id("agent"),
            conversation_id=new_id("conversation"),
            run_id=new_id("run"),
            step_id="step-1",
            calls=[call],
            allowed_tools=[name],
        )
        stream = self.execution.ExecuteTools(request)
        [finished] = [event.finished async for event in stream if event.HasField("finished")]
        return finished

    async def run(self, name: str, /, **arguments: Any) -> Any:
        """Runs a call that must succeed; returns the text for the model."""
        packed = json.loads((await self.finish(name, **arguments)).tool_return.content)
        assert packed["status"] == "OK", packed
        return packed["message"]

    async def refused(self, name: str, /, **arguments: Any) -> str:
        """Runs a call that must fail; returns the text for the model."""
        packed = json.loads((await self.finish(name, **arguments)).tool_return.content)
        assert packed["status"] == "Failed", packed
        return str(packed["message"])

    async def unknown(self, name: str, /, **arguments: Any) -> str:
        """Runs a call with an unknown outcome; returns the text for the model."""
        tool_return = (await self.finish(name, **arguments)).tool_return
        packed = json.loads(tool_return.content)
        assert packed["status"] == "Unknown", packed
        assert tool_return.status == message_pb2.TOOL_STATUS_UNKNOWN
        return str(packed["message"])

    async def secret(self, name: str, value: str) -> None:
        """Stores a secret."""
        await self.registry.PutSecret(tool_pb.PutSecretRequest(name=name, value=value))

    async def remove(self, server_id: str) -> None:
        """Removes a server."""
        await self.servers.RemoveMcpServer(pb.RemoveMcpServerRequest(mcp_server_id=server_id))


def alive(pid: int) -> bool:
    """Returns whether a process runs; a zombie does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@asynccontextmanager
async def serving_http(app: Any) -> AsyncIterator[str]:
    """Serves an application on loopback; yields its base URL."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    server.capture_signals = _nothing  # type: ignore[method-assign, assignment]
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        await eventually(lambda: server.started)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
        listening.close()


class _nothing:  # noqa: N801 - stands for a method
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def names(tools: Sequence[Any]) -> list[str]:
    """Returns the names of tools."""
    return [tool.name for tool in tools]
