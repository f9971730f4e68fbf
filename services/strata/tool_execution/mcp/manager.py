"""The sessions of this process with the servers of all projects.

There is one per project and server, opened when it is first needed and left when it was idle.
Servers share nothing: each has its own lock, its own slots and its own back-off.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import logging
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from strata.shared.context import Caller, RequestContext, current, current_project, use
from strata.shared.errors import DataLossError, FailedPreconditionError, StrataError
from strata.shared.fair_slots import share_of
from strata.shared.logs import get_logger
from strata.shared.redaction import Redactor
from strata.tool_execution.custom.secrets import SecretBox
from strata.tool_execution.domain.mcp import (
    CHANGED_REASON,
    GONE_REASON,
    Connectable,
    McpStore,
    SyncResult,
)
from strata.tool_execution.domain.sandbox import RunStatus
from strata.tool_execution.domain.tools import McpOrigin, Output, Tool, ToolError
from strata.tool_execution.mcp.errors import ConnectError, LostError, RefusedError
from strata.tool_execution.mcp.gate import judge
from strata.tool_execution.mcp.results import MAX_FAILURE, read_result
from strata.tool_execution.mcp.transports import Way

if TYPE_CHECKING:
    from strata.tool_execution.mcp.connection import Connection

_CONNECTION = "strata.tool_execution.mcp.connection"
# What of a caller's time is kept for the answer.
_ANSWER_S = 0.25
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_PING_S = 3.0
_RESYNC_PAUSE_S = 1.0
_TIDY_S = 15.0
_log = get_logger(__name__)
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ManagerLimits:
    """What sessions may take.

    Attributes:
        connect_s: Seconds to reach a server and read its tools.
        call_s: Seconds that a call may take, whatever the server's own limit.
        idle_s: Seconds without a call after which a server is left.
        connections: Sessions at the same time; one project has three quarters of them at most.
    """

    connect_s: float = 15.0
    call_s: float = 60.0
    idle_s: float = 600.0
    connections: int = 64


@dataclass(slots=True)
class _Entry:
    """What is kept of one server."""

    slots: asyncio.Semaphore
    calls: int
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    connection: Connection | None = None
    fingerprint: str = ""
    error: str = ""
    pause: float = 0.0
    retry_at: float = 0.0
    users: int = 0
    # Of the authorization server, to be taken out of what comes back.
    tokens: dict[str, str] = field(default_factory=dict, repr=False)


class McpManager:
    """Runs tools of MCP servers, and keeps what is known of them up to date.

    Args:
        store: The servers of the calling project.
        box: Opens their secrets.
        way: How they may be reached.
        limits: What sessions may take.
    """

    def __init__(self, store: McpStore, box: SecretBox, way: Way, limits: ManagerLimits) -> None:
        self._store = store
        self._box = box
        self._way = way
        self._limits = limits
        self._entries: dict[Key, _Entry] = {}
        self._resyncs: dict[Key, asyncio.Task[None]] = {}
        self._contacts: dict[Key, asyncio.Task[None]] = {}
        # What servers do wrong is told in our words, not as stack traces of the SDK.
        logging.getLogger("mcp").setLevel(logging.CRITICAL)

    async def run(self, tool: Tool, arguments: Mapping[str, Any]) -> Output:
        """Runs a tool with valid arguments.

        Raises:
            ToolError: It failed or may not be run, in words for the model.
        """
        own = tool.own
        if own is None or own.mcp is None:
            raise ToolError(f"{tool.name} has no server.")
        if own.blocked:
            raise ToolError(f"{tool.name} may not be run now: {own.blocked}.")
        origin = own.mcp
        found = (await self._store.connectable([origin.server_id])).get(origin.server_id)
        if found is None or not found.server.enabled:
            raise ToolError(f"{tool.name} may not be run: its MCP server is gone or disabled.")
        secrets = self._secrets(found, tool.name)
        tokens = self._entry(found).tokens
        seconds = min(float(found.server.call_timeout), self._limits.call_s)
        deadline = asyncio.get_running_loop().time() + seconds
        caller_waits = current().deadline
        if caller_waits is not None:
            deadline = min(deadline, caller_waits - _ANSWER_S)
        unknown, end = False, None
        try:
            result = await self._in_slot(tool, origin, found, arguments, deadline)
            redactor = _redactor(found, secrets, tokens)
            output = read_result(tool.name, result)
            return replace(output, value=redactor.value(output.value))
        except ConnectError as error:
            text = f"{tool.name} was not run: its MCP server cannot be used now: {error}."
        except LostError as error:
            unknown, end = True, RunStatus.KILLED
            text = (
                f"{tool.name} was sent to its MCP server, but the outcome is unknown: {error}."
                " It may have taken effect; check before you call it again."
            )
        except RefusedError as error:
            text, end = f"Error executing function {tool.name}: {error}", RunStatus.TOOL_ERROR
        except ToolError as error:
            text, end = str(error), error.end
        # Cut after redaction: half of a secret is harder to find.
        text = _redactor(found, secrets, tokens).text(text)[:MAX_FAILURE]
        raise ToolError(text, unknown=unknown, end=end)

    async def _in_slot(
        self,
        tool: Tool,
        origin: McpOrigin,
        found: Connectable,
        arguments: Mapping[str, Any],
        deadline: float,
    ) -> Mapping[str, Any]:
        entry = self._entry(found)
        entry.users += 1
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    await entry.slots.acquire()
            except TimeoutError:
                raise ConnectError(f"{entry.calls} calls of it are under way already") from None
            try:
                return await self._call(tool, origin, found, entry, arguments, deadline)
            finally:
                entry.slots.release()
        finally:
            entry.users -= 1

    async def _call(
        self,
        tool: Tool,
        origin: McpOrigin,
        found: Connectable,
        entry: _Entry,
        arguments: Mapping[str, Any],
        deadline: float,
    ) -> Mapping[str, Any]:
        try:
            async with asyncio.timeout_at(deadline):
                connection = await self._connected(found, entry, tool.name)
        except TimeoutError:
            raise ConnectError("it could not be reached in time") from None
        now = connection.digests.get(origin.name)
        if now != origin.digest:
            # The server is believed before the table, which may not be up to date yet.
            reason = CHANGED_REASON if now is not None else GONE_REASON
            raise ToolError(f"{tool.name} may not be run now: {reason}.")
        left = max(0.0, deadline - asyncio.get_running_loop().time())
        return await connection.call(origin.name, arguments, left)

    async def refresh(self, server_id: str) -> SyncResult:
        """Reads the tools of a server again, whatever became of the last attempt.

        Raises:
            NotFoundError: MCP_SERVER_NOT_FOUND.
            ConnectError: The server cannot be used now; that is stored.
        """
        server = await self._store.get(server_id)
        if not server.enabled:
            await self.forget(server_id)
            return SyncResult(server, [])
        found = (await self._store.connectable([server_id])).get(server_id)
        if found is None:
            found = Connectable(server)
        entry = self._entry(found)
        entry.users += 1
        try:
            async with entry.lock:
                entry.retry_at = 0.0
                connection = entry.connection
                if connection is not None and entry.fingerprint == _fingerprint(found):
                    try:
                        listed = await connection.list_tools(self._limits.connect_s)
                        return await self._synced(found, connection, listed)
                    except ConnectError:
                        pass
                await self._leave(entry)
                return await self._open(found, entry, server.name)
        finally:
            entry.users -= 1

    def look_after(self, server_ids: Collection[str], away: Collection[str]) -> None:
        """Opens sessions with servers in the background and reads their tools.

        A server that tells of changes does so in a session, and one that was away is offered
        again only after it was reached. Nothing is done for a server with a session, unless it
        is said to be away, nor before the pause after a failure is over, nor if another
        session would have to end for it.
        """
        now = asyncio.get_running_loop().time()
        for server_id in server_ids:
            key = (current_project(), server_id)
            entry = self._entries.get(key)
            running = self._contacts.get(key)
            if running is not None and not running.done():
                continue
            connection = None
            if entry is not None:
                if now < entry.retry_at:
                    continue
                connection = entry.connection
                if connection is not None and not connection.ended and server_id not in away:
                    continue
            # A session that is open is asked again; it takes no further place.
            if connection is None and not self._has_space(len(self._contacts)):
                continue
            task = asyncio.create_task(self._contact(key))
            self._contacts[key] = task
            task.add_done_callback(partial(self._contacted, key))

    def _has_space(self, opening: int) -> bool:
        held = Counter(key[0] for key, each in self._entries.items() if each.connection is not None)
        most = share_of(self._limits.connections)
        return (
            held[current_project()] + opening < most
            and held.total() + opening < self._limits.connections
        )

    def _contacted(self, key: Key, _: asyncio.Task[None]) -> None:
        self._contacts.pop(key, None)

    async def _contact(self, key: Key) -> None:
        project, server_id = key
        with use(RequestContext(caller=Caller("", project, "mcp"))):
            try:
                await self.refresh(server_id)
            except (ConnectError, StrataError) as error:
                # A reason that may repeat secrets is stored with the server, without them.
                _log.info("an MCP server is away", server_id=server_id, kind=type(error).__name__)

    async def forget(self, server_id: str) -> None:
        """Ends the session with a server, if there is one in this process."""
        entry = self._entries.pop((current_project(), server_id), None)
        if entry is not None:
            async with entry.lock:
                await self._leave(entry)

    async def keep_tidy(self) -> None:
        """Leaves servers that were not needed for a while; never returns."""
        while True:
            await asyncio.sleep(min(_TIDY_S, self._limits.idle_s / 4))
            await self.tidy()

    async def tidy(self) -> None:
        """Leaves servers that were not needed for a while."""
        now = asyncio.get_running_loop().time()
        for key, entry in list(self._entries.items()):
            connection = entry.connection
            if entry.users or entry.lock.locked():
                continue
            if connection is None:
                if now > entry.retry_at + _LONGEST_PAUSE_S:
                    self._entries.pop(key, None)
            elif connection.ended or now - connection.last_used >= self._limits.idle_s:
                async with entry.lock:
                    await self._leave(entry)

    async def close(self) -> None:
        """Leaves all servers."""
        tasks = [*self._resyncs.values(), *self._contacts.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        entries, self._entries = list(self._entries.values()), {}
        await asyncio.gather(*(self._leave(entry) for entry in entries))

    @property
    def connections(self) -> int:
        """Sessions that are open."""
        return sum(1 for entry in self._entries.values() if entry.connection is not None)

    def _entry(self, found: Connectable) -> _Entry:
        key = (current_project(), found.server.id)
        entry = self._entries.get(key)
        calls = found.server.max_calls
        if entry is None:
            entry = self._entries[key] = _Entry(asyncio.Semaphore(calls), calls)
        elif entry.calls != calls:
            # Those under way give their slots back to the old ones.
            entry.slots, entry.calls = asyncio.Semaphore(calls), calls
        return entry

    async def _connected(self, found: Connectable, entry: _Entry, name: str) -> Connection:
        async with entry.lock:
            connection = entry.connection
            if connection is not None and (
                connection.ended
                or entry.fingerprint != _fingerprint(found)
                or (connection.suspect and not await connection.answers(_PING_S))
            ):
                await self._leave(entry)
                connection = None
            if connection is None:
                wait = entry.retry_at - asyncio.get_running_loop().time()
                if wait > 0:
                    raise ConnectError(f"{entry.error} (tried again in {wait:.0f} seconds)")
                await self._open(found, entry, name)
                connection = entry.connection
            assert connection is not None
            return connection

    async def _open(self, found: Connectable, entry: _Entry, name: str) -> SyncResult:
        """Opens a session and reads the tools; the caller holds the lock."""
        server = found.server
        key = (current_project(), server.id)
        secrets: Mapping[str, str] = {}
        try:
            secrets = self._secrets(found, name)
            await self._make_space(entry)
            # On a thread: it takes a second the first time, and others must not wait for it.
            module = await asyncio.to_thread(importlib.import_module, _CONNECTION)
            connection: Connection = await module.Connection.open(
                self._way.opener(server, secrets, entry.tokens),
                lambda changed: self._changed(key, changed),
                self._limits.connect_s,
            )
            try:
                listed = await connection.list_tools(self._limits.connect_s)
                synced = await self._synced(found, connection, listed)
            except BaseException:
                await connection.close()
                raise
        except (ConnectError, ToolError) as error:
            said = _redactor(found, secrets, entry.tokens).text(str(error))
            entry.error = said
            entry.pause = min(max(_FIRST_PAUSE_S, entry.pause * 2), _LONGEST_PAUSE_S)
            entry.retry_at = asyncio.get_running_loop().time() + entry.pause
            await self._store.failed(server.id, said)
            raise ConnectError(said) from None
        entry.connection, entry.fingerprint = connection, _fingerprint(found)
        entry.error, entry.pause, entry.retry_at = "", 0.0, 0.0
        return synced

    async def _synced(
        self, found: Connectable, connection: Connection, listed: list[Any]
    ) -> SyncResult:
        # A server may repeat what it was sent also in descriptions, which are stored and shown.
        reported = judge(found.server.name, self._redactor(found).value(listed))
        synced = await self._store.sync(found.server.id, reported)
        connection.digests = {each.name: each.digest for each in reported if not each.problem}
        return synced

    async def _make_space(self, entry: _Entry) -> None:
        project, most = current_project(), share_of(self._limits.connections)
        held = Counter(key[0] for key, each in self._entries.items() if each.connection is not None)
        full = held[project] >= most
        if not full and held.total() < self._limits.connections:
            return
        idle = {
            key: each
            for key, each in self._entries.items()
            if each is not entry
            and each.connection is not None
            and not each.users
            and (key[0] == project or not full)
        }
        if not idle:
            raise ConnectError(
                f"the project has sessions with {most} MCP servers, as many as it may"
                if full
                else "this server talks to as many MCP servers as it may"
            )
        # The project with most sessions gives way, with the one that it used least lately.
        least = min(
            idle,
            key=lambda key: (
                -held[key[0]],
                idle[key].connection.last_used,  # type: ignore[union-attr]
            ),
        )
        await self._leave(idle[least])

    async def _leave(self, entry: _Entry) -> None:
        connection, entry.connection = entry.connection, None
        if connection is not None:
            await connection.close()

    def _changed(self, key: Key, connection: Connection) -> None:
        """Reads the tools again soon; many such messages at once count as one."""
        running = self._resyncs.get(key)
        if running is None or running.done():
            self._resyncs[key] = asyncio.create_task(self._resync(key, connection))
        else:
            connection.stale = True

    async def _resync(self, key: Key, connection: Connection) -> None:
        project, server_id = key
        with use(RequestContext(caller=Caller("", project, "mcp"))):
            while not connection.ended:
                connection.stale = False
                found: Connectable | None = None
                try:
                    found = (await self._store.connectable([server_id])).get(server_id)
                    if found is None:
                        return
                    listed = await connection.list_tools(self._limits.connect_s)
                    await self._synced(found, connection, listed)
                except (ConnectError, StrataError) as error:
                    text = str(error) if found is None else self._redactor(found).text(str(error))
                    _log.warning("tools of an MCP server cannot be read", error=text[:200])
                await asyncio.sleep(_RESYNC_PAUSE_S)
                if not connection.stale:
                    return

    def _redactor(self, found: Connectable) -> Redactor:
        """Returns what takes all that is sent to a server out of texts about it."""
        try:
            secrets = self._secrets(found, found.server.name)
        except ToolError:
            # What cannot be read was not sent.
            secrets = {}
        return _redactor(found, secrets, self._entry(found).tokens)

    def _secrets(self, found: Connectable, name: str) -> dict[str, str]:
        wanted = sorted(found.server.secret_names)
        missing = [each for each in wanted if each not in found.sealed]
        if missing:
            raise ToolError(
                f"{name} needs the secret {', '.join(missing)}, which is not stored."
                " Somebody with an administrator's key must store it."
            )
        try:
            return {each: self._box.open(each, found.sealed[each]) for each in wanted}
        except (DataLossError, FailedPreconditionError) as error:
            raise ToolError(f"{name} cannot be used: {error.message}") from None


def _redactor(
    found: Connectable, secrets: Mapping[str, str], tokens: Mapping[str, str]
) -> Redactor:
    """Returns what takes all credentials of a server out of texts about it."""
    return Redactor({**found.server.plain_credentials, **secrets, **tokens})


def _fingerprint(found: Connectable) -> str:
    """Another one needs another session: what is configured and the secrets as they are stored."""
    sealed = sorted((name, value.hex()) for name, value in found.sealed.items())
    text = json.dumps([found.server.configuration, sealed])
    return hashlib.sha256(text.encode()).hexdigest()
