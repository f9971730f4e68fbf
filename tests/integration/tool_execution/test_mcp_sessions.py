"""Sessions with MCP servers: limits, ends, and restrictions by the operator."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from callers import as_project
from mcp_support import alive, open_folder, program_command, serving_http, tool
from polling import eventually
from strata.protocol.errors import FailedPreconditionError, Reason
from strata.shared.context import use
from strata.shared.messages import ToolStatus
from strata.shared.web.errors import ForbiddenUrlError
from strata.shared.web.url_guard import Guard
from strata.tool_execution.custom.secrets import SecretBox
from strata.tool_execution.domain.mcp import (
    Connectable,
    McpServer,
    ReportedTool,
    ServerSyncResult,
    Transport,
)
from strata.tool_execution.domain.tools import (
    Effect,
    McpOrigin,
    OwnDefinition,
    Tool,
    ToolError,
    ToolType,
)
from strata.tool_execution.mcp import unreadable
from strata.tool_execution.mcp.errors import ConnectError
from strata.tool_execution.mcp.manager import ManagerLimits, McpManager
from strata.tool_execution.mcp.program_user import (
    ProgramUsers,
    open_program_users,
)
from strata.tool_execution.mcp.transports import McpTransports
from strata.tool_execution.settings import PROGRAM_UID, PROGRAM_UIDS
from web_servers import ok, raw_server

ANYTHING = {"type": "object", "properties": {}, "required": [], "additionalProperties": True}


async def nobody(host: str, port: int) -> Sequence[str]:
    raise OSError(host)


def way(**fields: Any) -> McpTransports:
    guard = Guard(nobody, private_networks=["127.0.0.0/8"], ports=range(1, 65_536))
    known = {"programs": True, "admission": guard, "message_bytes": 100_000, "connect_s": 5.0}
    return McpTransports(**{**known, "ssl_context": httpx2.create_ssl_context(), **fields})


def program_users(stack: AsyncExitStack) -> ProgramUsers | None:
    return open_program_users(PROGRAM_UID, PROGRAM_UIDS, None, stack)


@dataclass
class Kept:
    """The servers of a project as sessions see them, without a database."""

    servers: dict[str, McpServer] = field(default_factory=dict)
    reported: dict[str, Sequence[ReportedTool]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    async def get(self, server_id: str) -> McpServer:
        return self.servers[server_id]

    async def connectable(self, server_ids: Collection[str]) -> Mapping[str, Connectable]:
        return {server_id: Connectable(self.servers[server_id]) for server_id in server_ids}

    async def sync(self, server_id: str, reported: Sequence[ReportedTool]) -> ServerSyncResult:
        self.reported[server_id] = reported
        return ServerSyncResult(self.servers[server_id], [])

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
        self.folder = folder

    def program(self, name: str, *tools: Any) -> str:
        listed = self.folder / f"{name}.json"
        listed.write_text(json.dumps(tools))
        command = (*program_command(), str(listed))
        self.kept.servers[name] = McpServer(name, name, Transport.STDIO, command)
        return name

    async def run(self, server: str, name: str, **arguments: Any) -> Any:
        if server not in self.kept.reported:
            await self.manager.refresh(server)
        [digest] = [tool.digest for tool in self.kept.reported[server] if tool.name == name]
        own = OwnDefinition(id="tool", mcp=McpOrigin(server, name, digest))
        made = Tool(f"{server}__{name}", "", ToolType.MCP, ANYTHING, Effect.UNDECLARED, own=own)
        return (await self.manager.run(made, arguments)).value


@pytest_asyncio.fixture
async def sessions() -> AsyncIterator[Sessions]:
    async with AsyncExitStack() as stack:
        fixture = Sessions(
            stack.enter_context(open_folder()),
            ManagerLimits(connections=2, idle_s=0.0, call_s=20.0),
            program_users=program_users(stack),
        )
        with use(as_project("project-1")):
            yield fixture
            await fixture.manager.close()


async def test_programs_start_only_where_the_operator_allows_it(tmp_path: Path) -> None:
    refused = Sessions(tmp_path, ManagerLimits(), programs=False)
    server = refused.program("pets", tool("echo"))
    with pytest.raises(FailedPreconditionError) as caught:
        await way(programs=False).check(refused.kept.servers[server])
    assert caught.value.reason is Reason.MCP_STDIO_DISABLED
    # Also a server that was added while programs were allowed.
    with (
        use(as_project("project-1")),
        pytest.raises(ConnectError, match="operator"),
    ):
        await refused.manager.refresh(server)


async def test_an_address_is_checked_when_the_connection_is_made(tmp_path: Path) -> None:
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
            use(as_project("project-1")),
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
        with pytest.raises(ConnectError, match="compressed" if packed else "exceeds 100000 bytes"):
            await sessions.manager.refresh("far")


async def test_a_message_of_a_program_is_bounded(sessions: Sessions) -> None:
    server = sessions.program("loud", tool("flood"), tool("echo"))
    with pytest.raises(ToolError, match="exceeds 100000 bytes"):
        await sessions.run(server, "flood", size=300_000)
    assert json.loads(await sessions.run(server, "echo", a=1)) == {"a": 1}


UNREADABLE = {
    '{"jsonrpc": "2.0", "id": ID, "result": {"sum": DIGITS}}': "number out of range",
    '[{"jsonrpc": "2.0", "id": ID, "result": {}}]': "batch",
    '{"jsonrpc": "2.0", "id": ID}': "not a valid JSON-RPC response",
    '{"jsonrpc": "2.0", "id": ID, "error": {"code": 1, "message": ""}}': "it gave no reason",
    '{"jsonrpc": "2.0", "id": ID, "result": {"sum": 1}': "Invalid JSON",
    '{"jsonrpc": "2.0", "id": ID, "result": [1]}': "not a valid JSON-RPC response",
    '{"jsonrpc": "2.0", "id": null, "error": {"code": -1, "message": "no"}}': "without an id: no",
}


@pytest.mark.parametrize("line", UNREADABLE)
async def test_a_call_whose_answer_cannot_be_read_fails_at_once(
    sessions: Sessions, line: str
) -> None:
    server = sessions.program("odd", tool("raw"), tool("echo"))
    with pytest.raises(ToolError, match=UNREADABLE[line]):
        async with asyncio.timeout(10):
            await sessions.run(server, "raw", line=line)
    assert json.loads(await sessions.run(server, "echo", a=1)) == {"a": 1}


async def test_an_unreadable_answer_fails_only_the_call_that_it_names(sessions: Sessions) -> None:
    server = sessions.program("odd", tool("raw"), tool("echo"), tool("hang"))
    hanging = asyncio.create_task(sessions.run(server, "hang"))
    await asyncio.sleep(0.2)
    log_line = '{"level": "info", "id": 1, "text": "not a message"}'
    [broken, batch] = ['{"jsonrpc": "2.0", "id": ID', '[{"jsonrpc": "2.0", "id": ID, "result": 1}]']
    for line in (log_line, broken):
        # Which call it answers is not known.
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await sessions.run(server, "raw", line=line)
    with pytest.raises(ToolError, match="batch"):
        async with asyncio.timeout(10):
            await sessions.run(server, "raw", line=batch)
    assert not hanging.done()
    hanging.cancel()
    await asyncio.gather(hanging, return_exceptions=True)


async def test_an_error_with_the_code_of_a_lost_connection_ends_only_its_call(
    sessions: Sessions,
) -> None:
    server = sessions.program("odd", tool("raw"), tool("hang"))
    hanging = asyncio.create_task(sessions.run(server, "hang"))
    await asyncio.sleep(0.2)
    error = '{"jsonrpc": "2.0", "id": ID, "error": {"code": -32000, "message": "no such town"}}'
    with pytest.raises(ToolError, match="no such town") as caught:
        await sessions.run(server, "raw", line=error)
    assert caught.value.status is ToolStatus.FAILED
    assert not hanging.done()
    hanging.cancel()
    await asyncio.gather(hanging, return_exceptions=True)


async def test_a_stream_that_ends_before_its_answer_ends_only_its_call(sessions: Sessions) -> None:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        request = json.loads((await receive())["body"] or b"{}")
        results = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "cut", "version": "1"},
            },
            "tools/list": {"tools": [tool("cut"), tool("slow")]},
        }
        method, body = request.get("method"), b""
        headers = [(b"content-type", b"application/json")]
        if method in results:
            result = {"jsonrpc": "2.0", "id": request["id"], "result": results[method]}
            body = json.dumps(result).encode()
        elif method == "tools/call" and request["params"]["name"] == "slow":
            await cut.wait()
            result = {"jsonrpc": "2.0", "id": request["id"], "result": {"content": []}}
            body = json.dumps(result).encode()
        elif method == "tools/call":
            headers = [(b"content-type", b"text/event-stream")]
        status = 200 if "id" in request else 202 if request else 405
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    cut = asyncio.Event()
    async with serving_http(answer) as root:
        sessions.kept.servers["far"] = McpServer(
            "far", "far", Transport.STREAMABLE_HTTP, url=f"{root}/mcp"
        )
        await sessions.manager.refresh("far")
        slow = asyncio.create_task(sessions.run("far", "slow"))
        await asyncio.sleep(0.2)
        with pytest.raises(ToolError, match="ended without a response") as caught:
            await sessions.run("far", "cut")
        assert caught.value.status is ToolStatus.UNKNOWN
        cut.set()
        assert await slow == ""


async def test_many_lines_of_a_program_that_are_no_messages_do_not_hold_up_other_work(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    from strata.tool_execution.mcp import stdio  # noqa: PLC0415 - imports the SDK

    parsed: list[tuple[int, bytes]] = []
    turns_of_others = 0

    def read_message(text: bytes) -> Any:
        parsed.append((turns_of_others, text))
        return unreadable.read_message(text)

    async def work() -> None:
        nonlocal turns_of_others
        while True:
            turns_of_others += 1
            await asyncio.sleep(0)

    server = sessions.program("loud", tool("raw"))
    await sessions.manager.refresh(server)
    monkeypatch.setattr(stdio, "read_message", read_message)
    working = asyncio.create_task(work())
    answer = '{"jsonrpc": "2.0", "id": ID, "result": {"content": []}}'
    await sessions.run(server, "raw", line="{a log line\n" * 2_000 + "a log line\n" * 500 + answer)
    working.cancel()
    assert len(parsed) == 2_001
    assert max(Counter(turn for turn, _ in parsed).values()) <= 64


async def test_an_event_stream_is_read_in_small_pieces_with_turns_for_other_work() -> None:
    turns_of_others = 0

    async def work() -> None:
        nonlocal turns_of_others
        while True:
            turns_of_others += 1
            await asyncio.sleep(0)

    body = b": x\n\n" * 20_000
    async with raw_server() as server:
        server.answers["/events"] = ok(body, "text/event-stream")
        transport = way().transport()
        request = httpx2.Request("GET", server.url("/events"))
        response = await transport.handle_async_request(request)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        working = asyncio.create_task(work())
        pieces = [(turns_of_others, piece) async for piece in response.stream]
        working.cancel()
        await response.aclose()
        await transport.aclose()
    assert b"".join(piece for _, piece in pieces) == body
    assert max(len(piece) for _, piece in pieces) <= 4_096
    assert len({turn for turn, _ in pieces}) == len(pieces)


async def test_an_unreadable_answer_over_sse_fails_at_once(sessions: Sessions) -> None:
    events: asyncio.Queue[str] = asyncio.Queue()

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = [(b"content-type", b"text/event-stream")]
        if scope["method"] == "GET":
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            body = b"event: endpoint\ndata: /messages\n\n"
            await send({"type": "http.response.body", "body": body, "more_body": True})
            body = f"event: message\ndata: {await events.get()}\n\n".encode()
            await send({"type": "http.response.body", "body": body, "more_body": True})
            await receive()
            await receive()
            return
        request = json.loads((await receive())["body"])
        events.put_nowait(f'[{{"jsonrpc": "2.0", "id": {request["id"]}, "result": {{}}}}]')
        await send({"type": "http.response.start", "status": 202, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with serving_http(broken) as root:
        sessions.kept.servers["far"] = McpServer("far", "far", Transport.SSE, url=f"{root}/sse")
        with pytest.raises(ConnectError, match="batch"):
            async with asyncio.timeout(10):
                await sessions.manager.refresh("far")


def owner_and_mode(path: str) -> tuple[int, int]:
    status = Path(path).stat()
    return status.st_uid, status.st_mode & 0o777


@pytest.mark.skipif(os.geteuid() != 0, reason="the programs of an unprivileged service are its own")
async def test_programs_never_run_as_root_and_have_their_own_home(
    sessions: Sessions,
) -> None:
    server = sessions.program("pets", tool("user"))
    first = json.loads(await sessions.run(server, "user"))
    [uid] = set(first["ids"]["Uid:"] + first["ids"]["Gid:"])
    assert int(uid) in range(PROGRAM_UID, PROGRAM_UID + PROGRAM_UIDS)
    assert first["ids"]["Groups:"] == []
    assert int(first["ids"]["CapEff:"][0], 16) == 0
    assert first["cwd"] == first["home"]
    assert owner_and_mode(first["home"]) == (int(uid), 0o700)
    assert owner_and_mode(f"{first['home']}/cache") == (int(uid), 0o600)


@pytest.mark.skipif(os.geteuid() != 0, reason="the programs of an unprivileged service are its own")
@pytest.mark.parametrize("other_project", ["project-1", "project-2"])
async def test_a_program_cannot_access_programs_of_other_servers(
    sessions: Sessions, other_project: str
) -> None:
    victim = sessions.program("victim", tool("user"))
    with use(as_project(other_project)):
        of_victim = json.loads(await sessions.run(victim, "user"))
    attacker = sessions.program("attacker", tool("reach"), tool("user"))
    for pid, home in [
        (of_victim["pid"], of_victim["home"]),
        (os.getpid(), str(Path.home())),
    ]:
        reached = json.loads(await sessions.run(attacker, "reach", pid=pid, home=home))
        assert reached == []
    own = json.loads(await sessions.run(attacker, "user"))
    reached = json.loads(await sessions.run(attacker, "reach", pid=own["pid"], home=own["home"]))
    assert reached == ["environment", "memory", "descriptors", "signal", "home"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
async def test_environment_variables_take_effect_only_after_the_user_change(
    sessions: Sessions,
) -> None:
    # The dynamic linker writes a file for every program that has these variables.
    server = sessions.program("traced", tool("user"))
    sessions.kept.servers[server] = replace(
        sessions.kept.servers[server],
        environment={"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(sessions.folder / "trace")},
    )
    ids = json.loads(await sessions.run(server, "user"))["ids"]
    written = [trace.stat().st_uid for trace in sessions.folder.glob("trace.*")]
    assert written == [int(ids["Uid:"][0])]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
async def test_root_starts_no_program_without_a_configured_user() -> None:
    with open_folder() as folder:
        sessions = Sessions(folder, ManagerLimits())
        with use(as_project("project-1")):
            server = sessions.program("pets", tool("user"))
            with pytest.raises(ConnectError, match="not started as root"):
                await sessions.manager.refresh(server)
            await sessions.manager.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
async def test_a_program_that_its_user_cannot_start_is_an_error(sessions: Sessions) -> None:
    closed = sessions.folder / "closed"
    closed.write_text("#!/bin/sh\n")
    closed.chmod(0o700)
    sessions.kept.servers["closed"] = McpServer("closed", "closed", Transport.STDIO, (str(closed),))
    with pytest.raises(ConnectError, match=r"cannot be started by user id \d+"):
        await sessions.manager.refresh("closed")


async def test_idle_sessions_are_closed_to_make_space(sessions: Sessions) -> None:
    pids = []
    for name in ("one", "two", "three"):
        server = sessions.program(name, tool("child"))
        pids.append(json.loads(await sessions.run(server, "child")))
    assert sessions.manager.connections == 2
    await eventually(lambda: not any(map(alive, pids[0])))
    assert all(map(alive, pids[1] + pids[2]))
    await sessions.manager.close_idle_sessions()
    assert sessions.manager.connections == 0
    await eventually(lambda: not any(map(alive, pids[1] + pids[2])))


async def test_one_project_cannot_take_all_sessions() -> None:
    async with AsyncExitStack() as stack:
        sessions = Sessions(
            stack.enter_context(open_folder()),
            ManagerLimits(connections=4, call_s=20.0),
            program_users=program_users(stack),
        )
        stack.push_async_callback(sessions.manager.close)
        for name in ("one", "two", "three", "four"):
            sessions.program(name, tool("hang"), tool("echo"))
        with use(as_project("noisy")):
            hanging = [
                asyncio.create_task(sessions.run(name, "hang")) for name in ("one", "two", "three")
            ]
            await eventually(lambda: sessions.manager.connections == 3)
            with pytest.raises(ConnectError, match="sessions with 3 MCP servers, the maximum"):
                await sessions.manager.refresh("four")
        with use(as_project("quiet")):
            assert json.loads(await sessions.run("four", "echo", a=1)) == {"a": 1}
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)


async def test_servers_that_do_not_answer_delay_no_contact_of_another_project() -> None:
    async with AsyncExitStack() as stack:
        sessions = Sessions(
            stack.enter_context(open_folder()),
            ManagerLimits(connections=4),
            program_users=program_users(stack),
        )
        stack.push_async_callback(sessions.manager.close)
        for name in ("one", "two", "three"):
            sessions.kept.servers[name] = McpServer(name, name, Transport.STDIO, ("sleep", "60"))
        sessions.program("four", tool("echo"))
        with use(as_project("noisy")):
            sessions.manager.keep_connected(["one", "two", "three"], [])
            assert len(sessions.manager._contacts) == 3
        with use(as_project("quiet")):
            sessions.manager.keep_connected(["four"], [])
        await sessions.manager._contacts["quiet", "four"]
        assert "four" in sessions.kept.reported


async def test_an_unreachable_server_ends_no_session_of_another(sessions: Sessions) -> None:
    with use(as_project("project-2")):
        pids = json.loads(await sessions.run(sessions.program("theirs", tool("child")), "child"))
    mine = sessions.program("mine", tool("echo"))
    back = sessions.program("back", tool("echo"))
    await sessions.run(mine, "echo")
    sessions.manager.keep_connected([mine, back], [back])
    await asyncio.gather(*sessions.manager._contacts.values())
    assert all(map(alive, pids))
    assert back not in sessions.kept.reported
    # When a place is free, the server is contacted again.
    await sessions.manager.close_idle_sessions()
    sessions.manager.keep_connected([back], [back])
    await asyncio.gather(*sessions.manager._contacts.values())
    assert back in sessions.kept.reported


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


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="this system does not report it")
async def test_a_program_that_ended_between_two_calls_is_started_for_the_second(
    sessions: Sessions,
) -> None:
    server = sessions.program("pets", tool("child"), tool("echo"))
    pid, child = json.loads(await sessions.run(server, "child"))
    os.kill(pid, signal.SIGKILL)
    # The event loop is blocked meanwhile, so it cannot have noticed that the program ended. The
    # child of the program holds its pipes, which therefore show nothing either.
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - it has to block
    assert alive(child)
    assert json.loads(await sessions.run(server, "echo", a=1)) == {"a": 1}
    await eventually(lambda: not alive(child))


async def test_the_end_of_a_program_is_detected_while_a_child_holds_its_pipes(
    sessions: Sessions,
) -> None:
    server = sessions.program("pets", tool("child"), tool("die"), tool("echo"))
    _, child = json.loads(await sessions.run(server, "child"))
    with pytest.raises(ToolError, match="the program ended with exit code 3") as caught:
        await sessions.run(server, "die")
    assert caught.value.status is ToolStatus.UNKNOWN
    await eventually(lambda: not alive(child))
    assert json.loads(await sessions.run(server, "echo", a=1)) == {"a": 1}


async def test_a_cancelled_call_does_not_block_the_server_for_others(sessions: Sessions) -> None:
    server = sessions.program("slow", tool("hang"), tool("echo"), tool("child"))
    pids = json.loads(await sessions.run(server, "child"))
    hanging = asyncio.create_task(sessions.run(server, "hang"))
    await eventually(lambda: sessions.manager._entries["project-1", server].connection.in_flight)  # type: ignore[union-attr]
    hanging.cancel()
    await asyncio.gather(hanging, return_exceptions=True)
    assert json.loads(await sessions.run(server, "echo", a=1)) == {"a": 1}
    assert all(map(alive, pids))


async def test_a_cancelled_start_leaves_no_program(
    sessions: Sessions,
) -> None:
    noted = sessions.folder / "pid"
    program = f"import os,time; open({str(noted)!r},'w').write(str(os.getpid())); time.sleep(3600)"
    sessions.kept.servers["mute"] = McpServer(
        "mute", "mute", Transport.STDIO, (program_command()[0], "-c", program)
    )
    starting = asyncio.create_task(sessions.manager.refresh("mute"))
    pid = int(await eventually(lambda: noted.exists() and noted.read_text()))
    assert alive(pid)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await eventually(lambda: not alive(pid))
