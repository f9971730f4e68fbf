"""Sessions with MCP servers: their limits, their ends, and what an operator does not allow."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from mcp_support import DOUBLES, alive, serving_http, tool, until
from strata.shared.context import Caller, RequestContext, use
from strata.shared.errors import FailedPreconditionError, Reason
from strata.shared.web.errors import ForbiddenUrlError
from strata.shared.web.guard import Guard
from strata.tool_execution.custom.secrets import SecretBox
from strata.tool_execution.domain.mcp import Connectable, McpServer, Reported, Synced, Transport
from strata.tool_execution.domain.tools import (
    Effect,
    McpOrigin,
    OwnDefinition,
    Tool,
    ToolError,
    ToolType,
)
from strata.tool_execution.mcp.errors import ConnectError
from strata.tool_execution.mcp.manager import ManagerLimits, McpManager
from strata.tool_execution.mcp.opening import Way

ANYTHING = {"type": "object", "properties": {}, "required": [], "additionalProperties": True}


async def nobody(host: str, port: int) -> Sequence[str]:
    raise OSError(host)


def way(**fields: Any) -> Way:
    guard = Guard(nobody, private_networks=["127.0.0.0/8"], ports=range(1, 65_536))
    known = {"programs": True, "admission": guard, "message_bytes": 100_000, "connect_s": 5.0}
    return Way(**{**known, "ssl_context": httpx2.create_ssl_context(), **fields})


@dataclass
class Kept:
    """The servers of a project as sessions see them, without a database."""

    servers: dict[str, McpServer] = field(default_factory=dict)
    reported: dict[str, Sequence[Reported]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    async def get(self, server_id: str) -> McpServer:
        return self.servers[server_id]

    async def connectable(self, server_ids: Collection[str]) -> Mapping[str, Connectable]:
        return {each: Connectable(self.servers[each]) for each in server_ids}

    async def sync(self, server_id: str, reported: Sequence[Reported]) -> Synced:
        self.reported[server_id] = reported
        return Synced(self.servers[server_id], [])

    async def failed(self, server_id: str, error: str) -> None:
        self.errors.append(error)


class Sessions:
    """Sessions with programs."""

    def __init__(self, folder: Path, limits: ManagerLimits, **allowed: Any) -> None:
        self.kept = Kept()
        self.manager = McpManager(
            self.kept,  # type: ignore[arg-type]
            SecretBox(),
            way(**allowed),
            limits,
        )
        self._folder = folder

    def program(self, name: str, *tools: Any) -> str:
        listed = self._folder / f"{name}.json"
        listed.write_text(json.dumps(tools))
        command = (sys.executable, "-I", "-S", str(DOUBLES / "mcp_program.py"), str(listed))
        self.kept.servers[name] = McpServer(name, name, Transport.STDIO, command)
        return name

    async def run(self, server: str, name: str, **arguments: Any) -> Any:
        if server not in self.kept.reported:
            await self.manager.refresh(server)
        [digest] = [each.digest for each in self.kept.reported[server] if each.name == name]
        own = OwnDefinition(id="tool", mcp=McpOrigin(server, name, digest))
        made = Tool(f"{server}__{name}", "", ToolType.MCP, ANYTHING, Effect.UNDECLARED, own=own)
        return (await self.manager.run(made, arguments)).value


@pytest_asyncio.fixture
async def sessions(tmp_path: Path) -> AsyncIterator[Sessions]:
    each = Sessions(tmp_path, ManagerLimits(connections=2, idle_s=0.0, call_s=20.0))
    with use(RequestContext(caller=Caller("org", "project-1", "key"))):
        yield each
        await each.manager.close()


async def test_programs_are_only_started_where_the_operator_says_so(tmp_path: Path) -> None:
    refused = Sessions(tmp_path, ManagerLimits(), programs=False)
    server = refused.program("pets", tool("echo"))
    with pytest.raises(FailedPreconditionError) as caught:
        await way(programs=False).check(refused.kept.servers[server])
    assert caught.value.reason is Reason.MCP_STDIO_DISABLED
    # Also one that was added while it was allowed.
    with (
        use(RequestContext(caller=Caller("org", "project-1", "key"))),
        pytest.raises(ConnectError, match="operator"),
    ):
        await refused.manager.refresh(server)


async def test_an_address_is_checked_when_it_is_connected_to(tmp_path: Path) -> None:
    answers = iter([["93.184.216.34"], ["127.0.0.1"]])

    async def rebinding(host: str, port: int) -> Sequence[str]:
        return next(answers)

    async def never(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("it was reached")

    async with serving_http(never) as root:
        port = int(root.rpartition(":")[2])
        guarded = way(admission=Guard(rebinding, ports=[port]))
        url = f"http://friendly.example:{port}/mcp"
        server = McpServer("far", "far", Transport.STREAMABLE_HTTP, url=url)
        await guarded.check(server)
        sessions = Sessions(tmp_path, ManagerLimits(), admission=guarded.admission)
        sessions.kept.servers["far"] = server
        with (
            use(RequestContext(caller=Caller("org", "project-1", "key"))),
            pytest.raises(ConnectError, match="private or reserved"),
        ):
            await sessions.manager.refresh("far")
        with pytest.raises(ForbiddenUrlError):
            await way(admission=Guard(nobody)).check(replace(server, url=root))


async def test_a_redirect_elsewhere_is_not_followed(sessions: Sessions) -> None:
    asked: list[str] = []

    async def elsewhere(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            asked.append(scope["path"])
            location = (b"location", f"http://127.0.0.1:{other}/stolen".encode())
            await send({"type": "http.response.start", "status": 307, "headers": [location]})
            await send({"type": "http.response.body", "body": b""})

    async with serving_http(elsewhere) as there, serving_http(elsewhere) as here:
        other = there.rpartition(":")[2]
        sessions.kept.servers["far"] = McpServer(
            "far", "far", Transport.STREAMABLE_HTTP, url=f"{here}/mcp"
        )
        with pytest.raises(ConnectError):
            await sessions.manager.refresh("far")
    assert asked == ["/mcp"]


@pytest.mark.parametrize("packed", [False, True])
async def test_an_answer_over_http_is_bounded(sessions: Sessions, packed: bool) -> None:
    async def flood(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = [(b"content-type", b"application/json")]
            headers += [(b"content-encoding", b"gzip")] * packed
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            for _ in range(50):
                await send({"type": "http.response.body", "body": b" " * 9_999, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    async with serving_http(flood) as root:
        sessions.kept.servers["far"] = McpServer(
            "far", "far", Transport.STREAMABLE_HTTP, url=f"{root}/mcp"
        )
        with pytest.raises(ConnectError, match="packed" if packed else "exceeds 100000 bytes"):
            await sessions.manager.refresh("far")


async def test_a_message_of_a_program_is_bounded(sessions: Sessions) -> None:
    server = sessions.program("loud", tool("flood"), tool("echo"))
    with pytest.raises(ToolError, match="exceeds 100000 bytes"):
        await sessions.run(server, "flood", size=300_000)
    assert json.loads(await sessions.run(server, "echo", a=1)) == {"a": 1}


async def test_servers_that_are_not_needed_make_room(sessions: Sessions) -> None:
    pids = []
    for name in ("one", "two", "three"):
        server = sessions.program(name, tool("child"))
        pids.append(json.loads(await sessions.run(server, "child")))
    assert sessions.manager.connections == 2
    await until(lambda: not any(map(alive, pids[0])))
    assert all(map(alive, pids[1] + pids[2]))
    await sessions.manager.tidy()
    assert sessions.manager.connections == 0
    await until(lambda: not any(map(alive, pids[1] + pids[2])))


async def test_a_server_that_does_not_start_is_not_tried_with_every_call(
    sessions: Sessions,
) -> None:
    server = sessions.program("pets", tool("echo"), tool("die"))
    assert json.loads(await sessions.run(server, "echo", a=1)) == {"a": 1}
    broken = replace(sessions.kept.servers[server], command=("/no/such/program",))
    whole = sessions.kept.servers[server]
    sessions.kept.servers[server] = broken
    with pytest.raises(ToolError, match=r"was not run.*was not found"):
        await sessions.run(server, "echo")
    with pytest.raises(ToolError, match="tried again in"):
        await sessions.run(server, "echo")
    assert len(sessions.kept.errors) == 1
    sessions.kept.servers[server] = whole
    await sessions.manager.refresh(server)
    assert json.loads(await sessions.run(server, "echo", a=2)) == {"a": 2}


async def test_a_call_that_is_cancelled_leaves_the_server_to_others(sessions: Sessions) -> None:
    server = sessions.program("slow", tool("hang"), tool("echo"), tool("child"))
    pids = json.loads(await sessions.run(server, "child"))
    hanging = asyncio.create_task(sessions.run(server, "hang"))
    await until(lambda: sessions.manager._entries["project-1", server].connection.in_flight)  # type: ignore[union-attr]
    hanging.cancel()
    await asyncio.gather(hanging, return_exceptions=True)
    assert json.loads(await sessions.run(server, "echo", a=1)) == {"a": 1}
    assert all(map(alive, pids))


async def test_a_start_that_is_cancelled_leaves_no_program(
    sessions: Sessions, tmp_path: Path
) -> None:
    noted = tmp_path / "pid"
    program = f"import os,time; open({str(noted)!r},'w').write(str(os.getpid())); time.sleep(3600)"
    sessions.kept.servers["mute"] = McpServer(
        "mute", "mute", Transport.STDIO, (sys.executable, "-c", program)
    )
    starting = asyncio.create_task(sessions.manager.refresh("mute"))
    pid = int(await until(lambda: noted.exists() and noted.read_text()))
    assert alive(pid)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await until(lambda: not alive(pid))
