"""The MCP sessions of this process with the servers of all projects.

There is one session per project and server. It is opened when it is first needed and closed when it
is idle. Servers share nothing: each has its own lock, call slots and backoff.
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

from strata.protocol.errors import DataLossError, FailedPreconditionError, StrataError
from strata.shared.context import Caller, RequestContext, current, current_project, use
from strata.shared.fair_slots import share_of
from strata.shared.logs import get_logger
from strata.shared.partitions import DEFAULT_PARTITION
from strata.shared.redaction import Redactor
from strata.shared.sandbox import RunStatus
from strata.shared.text_work import run_text_work
from strata.tool_execution.custom.secrets import SecretBox
from strata.tool_execution.domain.mcp import (
    CHANGED_REASON,
    GONE_REASON,
    Connectable,
    McpStore,
    ServerSyncResult,
)
from strata.tool_execution.domain.tools import McpOrigin, Output, Tool, ToolError
from strata.tool_execution.mcp.errors import ConnectError, LostError, RefusedError
from strata.tool_execution.mcp.results import MAX_FAILURE, read_result
from strata.tool_execution.mcp.tool_check import check_tools
from strata.tool_execution.mcp.transports import McpTransports

if TYPE_CHECKING:
    from strata.tool_execution.mcp.connection import McpConnection

_CONNECTION = "strata.tool_execution.mcp.connection"
# Part of a caller's time that is reserved for returning the error.
_ANSWER_S = 0.25
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_PING_S = 3.0
_RESYNC_PAUSE_S = 1.0
_IDLE_CHECK_S = 15.0
_log = get_logger(__name__)
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ManagerLimits:
    """Limits of sessions.

    Attributes:
        connect_s: Seconds to connect to a server and read its tools.
        call_s: Seconds that a call may take; a server's own limit may be lower.
        idle_s: Seconds without a call after which a session is closed.
        connections: Maximum number of sessions; a project has at most three quarters of them.
    """

    connect_s: float = 15.0
    call_s: float = 60.0
    idle_s: float = 600.0
    connections: int = 64


@dataclass(slots=True)
class _Entry:
    """State of one server."""

    slots: asyncio.Semaphore
    calls: int
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    connection: McpConnection | None = None
    fingerprint: str = ""
    error: str = ""
    pause: float = 0.0
    retry_at: float = 0.0
    users: int = 0
    # Tokens of the authorization server, which are redacted in responses.
    tokens: dict[str, str] = field(default_factory=dict, repr=False)


class McpManager:
    """Runs tools of MCP servers, and keeps the stored tools up to date.

    Args:
        store: The servers of the calling project.
        box: Decrypts their secrets.
        transports: Opens connections to servers, as the operator allows.
        limits: Limits of sessions.
        partition: The partition of the projects.
    """

    def __init__(
        self,
        store: McpStore,
        box: SecretBox,
        transports: McpTransports,
        limits: ManagerLimits,
        partition: str = DEFAULT_PARTITION,
    ) -> None:
        self._store = store
        self._box = box
        self._transports = transports
        self._limits = limits
        self._partition = partition
        self._entries: dict[Key, _Entry] = {}
        self._resyncs: dict[Key, asyncio.Task[None]] = {}
        self._contacts: dict[Key, asyncio.Task[None]] = {}
        # Errors of servers are reported by our own messages, not by stack traces of the SDK.
        logging.getLogger("mcp").setLevel(logging.CRITICAL)

    async def run(self, tool: Tool, arguments: Mapping[str, Any]) -> Output:
        """Runs a tool with valid arguments.

        Raises:
            ToolError: The tool failed or must not be run; the message is written for the model.
        """
        own = tool.own
        if own is None or own.mcp is None:
            raise ToolError(f"{tool.name} has no server.")
        if own.blocked:
            raise ToolError(f"{tool.name} may not be run now: {own.blocked}.")
        origin = own.mcp
        connectable = (await self._store.connectable([origin.server_id])).get(origin.server_id)
        if connectable is None or not connectable.server.enabled:
            raise ToolError(f"{tool.name} may not be run: its MCP server is gone or disabled.")
        secrets = self._secrets(connectable, tool.name)
        tokens = self._entry(connectable).tokens
        seconds = min(float(connectable.server.call_timeout), self._limits.call_s)
        deadline = asyncio.get_running_loop().time() + seconds
        caller_deadline = current().deadline
        if caller_deadline is not None:
            deadline = min(deadline, caller_deadline - _ANSWER_S)
        unknown, end = False, None
        try:
            result = await self._in_slot(tool, origin, connectable, arguments, deadline)
            redactor = _redactor(connectable, secrets, tokens)
            # On a thread: servers send results of some MB.
            return await asyncio.to_thread(_read, tool, result, redactor)
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
        redactor = _redactor(connectable, secrets, tokens)
        # Truncated after redaction, because half of a secret would not be recognised.
        text = (await run_text_work([text], lambda: redactor.text(text)))[:MAX_FAILURE]
        raise ToolError(text, unknown=unknown, end=end)

    async def _in_slot(
        self,
        tool: Tool,
        origin: McpOrigin,
        connectable: Connectable,
        arguments: Mapping[str, Any],
        deadline: float,
    ) -> Mapping[str, Any]:
        entry = self._entry(connectable)
        entry.users += 1
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    await entry.slots.acquire()
            except TimeoutError:
                raise ConnectError(f"{entry.calls} calls of it are already running") from None
            try:
                return await self._call(tool, origin, connectable, entry, arguments, deadline)
            finally:
                entry.slots.release()
        finally:
            entry.users -= 1

    async def _call(
        self,
        tool: Tool,
        origin: McpOrigin,
        connectable: Connectable,
        entry: _Entry,
        arguments: Mapping[str, Any],
        deadline: float,
    ) -> Mapping[str, Any]:
        try:
            async with asyncio.timeout_at(deadline):
                connection = await self._connected(connectable, entry, tool.name)
        except TimeoutError:
            raise ConnectError("it could not be reached in time") from None
        now = connection.digests.get(origin.name)
        if now != origin.digest:
            # The session has newer information than the database.
            reason = CHANGED_REASON if now is not None else GONE_REASON
            raise ToolError(f"{tool.name} may not be run now: {reason}.")
        remaining_s = max(0.0, deadline - asyncio.get_running_loop().time())
        return await connection.call(origin.name, arguments, remaining_s)

    async def refresh(self, server_id: str) -> ServerSyncResult:
        """Reads the tools of a server again, without waiting for the backoff of earlier failures.

        Raises:
            NotFoundError: The server does not exist (``MCP_SERVER_NOT_FOUND``).
            ConnectError: The server cannot be used now; the error is stored.
        """
        server = await self._store.get(server_id)
        if not server.enabled:
            await self.forget(server_id)
            return ServerSyncResult(server, [])
        connectable = (await self._store.connectable([server_id])).get(server_id)
        if connectable is None:
            connectable = Connectable(server)
        entry = self._entry(connectable)
        entry.users += 1
        try:
            async with entry.lock:
                entry.retry_at = 0.0
                connection = entry.connection
                if connection is not None and entry.fingerprint == _fingerprint(connectable):
                    try:
                        server_tools = await connection.list_tools(self._limits.connect_s)
                        return await self._synced(connectable, connection, server_tools)
                    except ConnectError:
                        pass
                await self._disconnect(entry)
                return await self._open(connectable, entry, server.name)
        finally:
            entry.users -= 1

    def keep_connected(self, server_ids: Collection[str], away: Collection[str]) -> None:
        """Opens sessions with servers in the background and reads their tools.

        Servers report changes of their tools only in a session, and the tools of a server that was
        unreachable are offered again only after it was reached. Nothing is done for a server that
        has a session and is not in `away`, during the backoff after a failure, or if another
        session would have to be closed.
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
            # An open session is reused, so it needs no further slot.
            if connection is None and not self._has_space():
                continue
            task = asyncio.create_task(self._contact(key))
            self._contacts[key] = task
            task.add_done_callback(partial(self._contact_done, key))

    def _has_space(self) -> bool:
        # Sessions by project, those that are being opened included.
        sessions = Counter(
            key[0] for key, entry in self._entries.items() if entry.connection is not None
        )
        sessions.update(key[0] for key in self._contacts)
        max_connections = share_of(self._limits.connections)
        return (
            sessions[current_project()] < max_connections
            and sessions.total() < self._limits.connections
        )

    def _contact_done(self, key: Key, _: asyncio.Task[None]) -> None:
        self._contacts.pop(key, None)

    def _context(self, project_id: str) -> RequestContext:
        """Returns the context of work that no call waits for."""
        return RequestContext(caller=Caller("", project_id, "mcp", partition=self._partition))

    async def _contact(self, key: Key) -> None:
        project, server_id = key
        with use(self._context(project)):
            try:
                await self.refresh(server_id)
            except (ConnectError, StrataError) as error:
                # Not logged: the message may contain secrets. It is stored redacted.
                _log.info(
                    "an MCP server cannot be reached",
                    server_id=server_id,
                    kind=type(error).__name__,
                )

    async def forget(self, server_id: str) -> None:
        """Ends the session with a server, if there is one in this process."""
        entry = self._entries.pop((current_project(), server_id), None)
        if entry is not None:
            async with entry.lock:
                await self._disconnect(entry)

    async def close_idle_sessions_regularly(self) -> None:
        """Closes idle sessions from time to time; never returns."""
        while True:
            await asyncio.sleep(min(_IDLE_CHECK_S, self._limits.idle_s / 4))
            await self.close_idle_sessions()

    async def close_idle_sessions(self) -> None:
        """Closes sessions that have been idle for `idle_s`."""
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
                    await self._disconnect(entry)

    async def close(self) -> None:
        """Closes all sessions."""
        tasks = [*self._resyncs.values(), *self._contacts.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        entries, self._entries = list(self._entries.values()), {}
        await asyncio.gather(*(self._disconnect(entry) for entry in entries))

    @property
    def connections(self) -> int:
        """Number of open sessions."""
        return sum(1 for entry in self._entries.values() if entry.connection is not None)

    def _entry(self, connectable: Connectable) -> _Entry:
        key = (current_project(), connectable.server.id)
        entry = self._entries.get(key)
        calls = connectable.server.max_calls
        if entry is None:
            entry = self._entries[key] = _Entry(asyncio.Semaphore(calls), calls)
        elif entry.calls != calls:
            # Running calls release their slots to the old semaphore.
            entry.slots, entry.calls = asyncio.Semaphore(calls), calls
        return entry

    async def _connected(self, connectable: Connectable, entry: _Entry, name: str) -> McpConnection:
        async with entry.lock:
            connection = entry.connection
            if connection is not None and (
                connection.ended
                or entry.fingerprint != _fingerprint(connectable)
                or (connection.suspect and not await connection.answers(_PING_S))
            ):
                await self._disconnect(entry)
                connection = None
            if connection is None:
                wait = entry.retry_at - asyncio.get_running_loop().time()
                if wait > 0:
                    raise ConnectError(f"{entry.error} (tried again in {wait:.0f} seconds)")
                await self._open(connectable, entry, name)
                connection = entry.connection
            assert connection is not None
            return connection

    async def _open(self, connectable: Connectable, entry: _Entry, name: str) -> ServerSyncResult:
        """Opens a session and reads the tools; the caller holds the lock."""
        server = connectable.server
        key = (current_project(), server.id)
        secrets: Mapping[str, str] = {}
        try:
            secrets = self._secrets(connectable, name)
            await self._make_space(entry)
            # On a thread: the first import takes a second and would block the event loop.
            module = await asyncio.to_thread(importlib.import_module, _CONNECTION)
            connection: McpConnection = await module.McpConnection.open(
                self._transports.opener(server, secrets, entry.tokens),
                lambda changed: self._changed(key, changed),
                self._limits.connect_s,
            )
            try:
                server_tools = await connection.list_tools(self._limits.connect_s)
                synced = await self._synced(connectable, connection, server_tools)
            except BaseException:
                await connection.close()
                raise
        except (ConnectError, ToolError) as error:
            message = _redactor(connectable, secrets, entry.tokens).text(str(error))
            entry.error = message
            entry.pause = min(max(_FIRST_PAUSE_S, entry.pause * 2), _LONGEST_PAUSE_S)
            entry.retry_at = asyncio.get_running_loop().time() + entry.pause
            await self._store.failed(server.id, message)
            raise ConnectError(message) from None
        entry.connection, entry.fingerprint = connection, _fingerprint(connectable)
        entry.error, entry.pause, entry.retry_at = "", 0.0, 0.0
        return synced

    async def _synced(
        self, connectable: Connectable, connection: McpConnection, server_tools: list[Any]
    ) -> ServerSyncResult:
        # Descriptions are stored and shown, and a server may repeat secrets in them: redact first.
        name, redactor = connectable.server.name, self._redactor(connectable)
        # On a thread: a server can list hundreds of tools, each with a large schema.
        reported = await asyncio.to_thread(lambda: check_tools(name, redactor.value(server_tools)))
        synced = await self._store.sync(connectable.server.id, reported)
        connection.digests = {tool.name: tool.digest for tool in reported if not tool.problem}
        return synced

    async def _make_space(self, entry: _Entry) -> None:
        project, max_connections = current_project(), share_of(self._limits.connections)
        connection_counts = Counter(
            key[0] for key, other in self._entries.items() if other.connection is not None
        )
        full = connection_counts[project] >= max_connections
        if not full and connection_counts.total() < self._limits.connections:
            return
        idle = {
            key: other
            for key, other in self._entries.items()
            if other is not entry
            and other.connection is not None
            and not other.users
            and (key[0] == project or not full)
        }
        if not idle:
            raise ConnectError(
                f"the project has sessions with {max_connections} MCP servers, the maximum"
                if full
                else "this server has the maximum number of MCP sessions"
            )
        # Closes the least recently used session of the project with the most sessions.
        least = min(
            idle,
            key=lambda key: (
                -connection_counts[key[0]],
                idle[key].connection.last_used,  # type: ignore[union-attr]
            ),
        )
        await self._disconnect(idle[least])

    async def _disconnect(self, entry: _Entry) -> None:
        connection, entry.connection = entry.connection, None
        if connection is not None:
            await connection.close()

    def _changed(self, key: Key, connection: McpConnection) -> None:
        """Reads the tools again soon; several notifications in a row cause one reading."""
        running = self._resyncs.get(key)
        if running is None or running.done():
            self._resyncs[key] = asyncio.create_task(self._resync(key, connection))
        else:
            connection.stale = True

    async def _resync(self, key: Key, connection: McpConnection) -> None:
        project, server_id = key
        with use(self._context(project)):
            while not connection.ended:
                connection.stale = False
                connectable: Connectable | None = None
                try:
                    connectable = (await self._store.connectable([server_id])).get(server_id)
                    if connectable is None:
                        return
                    server_tools = await connection.list_tools(self._limits.connect_s)
                    await self._synced(connectable, connection, server_tools)
                except (ConnectError, StrataError) as error:
                    text = (
                        str(error)
                        if connectable is None
                        else self._redactor(connectable).text(str(error))
                    )
                    _log.warning("tools of an MCP server cannot be read", error=text[:200])
                await asyncio.sleep(_RESYNC_PAUSE_S)
                if not connection.stale:
                    return

    def _redactor(self, connectable: Connectable) -> Redactor:
        """Returns a redactor of all secrets that are sent to a server."""
        try:
            secrets = self._secrets(connectable, connectable.server.name)
        except ToolError:
            # Secrets that cannot be decrypted were not sent.
            secrets = {}
        return _redactor(connectable, secrets, self._entry(connectable).tokens)

    def _secrets(self, connectable: Connectable, name: str) -> dict[str, str]:
        secret_names = sorted(connectable.server.secret_names)
        missing = [secret for secret in secret_names if secret not in connectable.sealed]
        if missing:
            raise ToolError(
                f"{name} needs the secret {', '.join(missing)}, which is not stored."
                " Someone with an admin key must store it."
            )
        try:
            return {
                secret: self._box.open(secret, connectable.sealed[secret])
                for secret in secret_names
            }
        except (DataLossError, FailedPreconditionError) as error:
            raise ToolError(f"{name} cannot be used: {error.message}") from None


def _read(tool: Tool, result: Mapping[str, Any], redactor: Redactor) -> Output:
    output = read_result(tool.name, result, tool.return_char_limit)
    return replace(output, value=redactor.value(output.value))


def _redactor(
    connectable: Connectable, secrets: Mapping[str, str], tokens: Mapping[str, str]
) -> Redactor:
    """Returns a redactor of all credentials of a server."""
    return Redactor({**connectable.server.plain_credentials, **secrets, **tokens})


def _fingerprint(connectable: Connectable) -> str:
    """Returns a hash of configuration and encrypted secrets; a change needs a new session."""
    sealed = sorted((name, value.hex()) for name, value in connectable.sealed.items())
    text = json.dumps([connectable.server.configuration, sealed])
    return hashlib.sha256(text.encode()).hexdigest()
