"""One MCP session with one server, in a separate task.

All code of the SDK runs in that task and its children. So streams and programs are closed in the
task that opened them, even if a caller is cancelled. A caller waits for its response outside of the
SDK, so that a server that hangs cannot block it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import anyio
import httpx2
import mcp_types as types
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from strata.tool_execution.domain.mcp import MAX_ERROR
from strata.tool_execution.mcp.errors import ConnectError, LostError, RefusedError
from strata.tool_execution.mcp.results import NO_REASON
from strata.tool_execution.mcp.streams import Opener, status_text
from strata.tool_execution.mcp.unreadable import (
    UnreadableAnswer,
    unreadable_answer,
    without_id,
)

MOST_TOOLS = 500
_MOST_PAGES = 50
_CLOSE_S = 8.0
# Errors with which the SDK replaces an invalid response of a server. Only a status that refuses the
# request (4xx) shows that it was not carried out.
_NO_ANSWER = (
    "Server returned an error response",
    "Failed to parse",
    "Unexpected content type",
)
# Errors with which the SDK replaces a response over HTTP whose stream of events ended before it.
_STREAM_ENDED = "SSE stream "


class McpConnection:
    """A session with a server. Create it with `open`.

    Args:
        opener: Opens the streams to the server.
        on_change: Called when the server notifies that its list of tools has changed.

    Attributes:
        in_flight: Number of requests that wait for a response.
        suspect: Whether the last request timed out.
        stale: Whether the tools have changed while they were being read.
        last_used: Time of the event loop at which the last request ended.
        digests: Hashes of the usable tools by name, from the last listing.
    """

    def __init__(self, opener: Opener, on_change: Callable[[McpConnection], None]) -> None:
        self._opener = opener
        self._on_change = on_change
        self._ready: asyncio.Future[JSONRPCDispatcher[Any]] = (
            asyncio.get_running_loop().create_future()
        )
        self._ending = asyncio.Event()
        self._ended = asyncio.Event()
        self._requests: set[asyncio.Task[dict[str, Any]]] = set()
        # One for each request that waits: what was wrong with its answer.
        self._unreadable: set[asyncio.Future[str]] = set()
        self._error = ""
        self._status: Callable[[], int] = int
        self._server_ended: Callable[[], bool] = bool
        self._unconnected = False
        self._has_tools = True
        self.in_flight = 0
        self.suspect = False
        self.stale = False
        self.last_used = asyncio.get_running_loop().time()
        self.digests: Mapping[str, str] = {}
        # In a new context: the session outlives the caller and must not use its credentials.
        self._task = asyncio.create_task(self._live(), context=contextvars.Context())

    @classmethod
    async def open(
        cls, opener: Opener, on_change: Callable[[McpConnection], None], seconds: float
    ) -> McpConnection:
        """Returns an initialised session.

        Raises:
            ConnectError: The server cannot be reached or did not answer in time.
        """
        connection = cls(opener, on_change)
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(connection._ready)
        except TimeoutError:
            raise ConnectError(f"no answer within {seconds:g} seconds") from None
        finally:
            if not connection._is_ready:
                await connection.close()
        return connection

    @property
    def ended(self) -> bool:
        """Whether the session has ended, so that no request can be sent."""
        return self._ended.is_set() or self._task.done() or self._server_ended()

    @property
    def _is_ready(self) -> bool:
        ready = self._ready
        return ready.done() and not ready.cancelled() and ready.exception() is None

    async def list_tools(self, seconds: float) -> list[Any]:
        """Returns all tools as the server sends them, unchecked.

        Raises:
            ConnectError: There was no valid response in time.
        """
        if not self._has_tools:
            return []
        tools: list[Any] = []
        cursor: str | None = None
        try:
            async with asyncio.timeout(seconds):
                for _ in range(_MOST_PAGES):
                    parameters = {"cursor": cursor} if cursor else {}
                    page = await self._request("tools/list", parameters, seconds)
                    page_tools = page.get("tools")
                    if page_tools is None and "tools" in page:
                        # Servers in Go write an empty list so.
                        page_tools = []
                    if not isinstance(page_tools, list):
                        raise ConnectError("its list of tools is not a list")
                    tools += page_tools
                    if len(tools) > MOST_TOOLS:
                        raise ConnectError(f"it has more than {MOST_TOOLS} tools")
                    cursor = page.get("nextCursor")
                    if not isinstance(cursor, str) or not cursor:
                        return tools
        except (LostError, RefusedError) as error:
            raise ConnectError(f"its tools cannot be listed: {error}") from None
        except TimeoutError:
            raise ConnectError("its tools could not be listed in time") from None
        raise ConnectError(f"its list of tools has more than {_MOST_PAGES} pages")

    async def call(
        self, name: str, arguments: Mapping[str, Any], seconds: float
    ) -> Mapping[str, Any]:
        """Runs a tool; returns the result as the server sent it.

        Raises:
            ConnectError: The tool was not run.
            LostError: The tool may have been run.
            RefusedError: The server refused the call.
        """
        parameters = {"name": name, "arguments": dict(arguments)}
        return await self._request("tools/call", parameters, seconds)

    async def answers(self, seconds: float) -> bool:
        """Returns whether the server still answers (``ping``)."""
        try:
            await self._request("ping", None, seconds)
        except RefusedError:
            pass
        except (ConnectError, LostError):
            return False
        self.suspect = False
        return True

    async def close(self) -> None:
        """Ends the session and its program, if it has one, within a bounded time."""
        self._ending.set()
        # A session that was never initialised is still waiting for the server.
        patience = _CLOSE_S if self._is_ready else 0.0
        done, _ = await asyncio.wait([self._task], timeout=patience)
        if not done:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_CLOSE_S)

    async def _request(
        self, method: str, parameters: dict[str, Any] | None, seconds: float
    ) -> dict[str, Any]:
        if self.ended:
            raise ConnectError(self._error or "the connection has ended")
        dispatcher = self._ready.result()
        loop = asyncio.get_running_loop()
        request = asyncio.create_task(dispatcher.send_raw_request(method, parameters, {}))
        self._requests.add(request)
        request.add_done_callback(self._forget)
        self.in_flight += 1
        unreadable: asyncio.Future[str] = loop.create_future()
        self._unreadable.add(unreadable)
        try:
            waiting: list[asyncio.Future[Any]] = [request, unreadable]
            done, _ = await asyncio.wait(
                waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if unreadable in done and request not in done:
                raise LostError(unreadable.result()[:MAX_ERROR])
            if not done:
                self.suspect = True
                raise LostError(f"there was no answer within {seconds:.3g} seconds")
            return request.result()
        except MCPError as error:
            raise await self._failure(error) from None
        finally:
            # Not awaited: it may hang in the server's pipe.
            request.cancel()
            self._unreadable.discard(unreadable)
            self.in_flight -= 1
            self.last_used = loop.time()

    def _forget(self, request: asyncio.Task[dict[str, Any]]) -> None:
        self._requests.discard(request)
        if not request.cancelled():
            request.exception()

    async def _failure(self, error: MCPError) -> Exception:
        if error.code == types.INVALID_REQUEST and error.message == "Session terminated":
            # HTTP 404: the server no longer has the session, so nothing was run.
            self._ending.set()
            return ConnectError("the server no longer has the session")
        if error.code != types.CONNECTION_CLOSED:
            if error.message.startswith(_STREAM_ENDED):
                return LostError(error.message[:MAX_ERROR])
            status = self._status()
            if error.message.startswith(_NO_ANSWER) and not 400 <= status < 500:
                description = (
                    f"it answered {status_text(status)}" if status >= 500 else error.message
                )
                return LostError(description[:MAX_ERROR])
            return RefusedError(error.message[:MAX_ERROR] or NO_REASON)
        # The reason is known when the task has ended.
        alone = self.in_flight == 1
        self._ending.set()
        await asyncio.wait([self._task], timeout=_CLOSE_S)
        if self._unconnected and alone:
            return ConnectError(self._error)
        return LostError(self._error or "the connection was lost")

    async def _live(self) -> None:
        details: Callable[[], str] = str
        try:
            async with AsyncExitStack() as stack:
                streams = await stack.enter_async_context(self._opener())
                details, self._status = streams.details, streams.status
                self._server_ended = streams.ended
                incoming = await stack.enter_async_context(self._watched(streams.incoming))
                dispatcher: JSONRPCDispatcher[Any] = JSONRPCDispatcher(incoming, streams.outgoing)
                session = ClientSession(
                    dispatcher=dispatcher,
                    message_handler=self._on_message,
                    client_info=types.Implementation(name="strata", version="1"),
                )
                await stack.enter_async_context(session)
                await session.initialize()
                capabilities = session.server_capabilities
                self._has_tools = capabilities is not None and capabilities.tools is not None
                self._ready.set_result(dispatcher)
                await self._first_of(self._ending, self._ended)
                if not self._ending.is_set():
                    self._error = "the server has ended the connection"
        except Exception as error:  # noqa: BLE001 - every error ends the session
            leaf = _leaf(error)
            self._unconnected = isinstance(leaf, httpx2.ConnectError | httpx2.ConnectTimeout)
            self._error = _description(leaf)
        finally:
            self._ended.set()
            more = details()
            if more:
                self._error = f"{self._error} ({more})" if self._error else more
            self._error = self._error[:MAX_ERROR]
            if not self._ready.done():
                self._ready.set_exception(ConnectError(self._error or "it ended immediately"))
                self._ready.exception()

    async def _on_message(self, message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._on_change(self)

    @contextlib.asynccontextmanager
    async def _watched(self, source: Any) -> AsyncIterator[Any]:
        """Yields a stream of the messages, and detects its end also between requests.

        Answers that are not valid are replaced by errors, since the SDK would drop them.
        """
        sink, incoming = anyio.create_memory_object_stream[Any](0)

        async def forward() -> None:
            with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                async with sink:
                    async for item in source:
                        for message in self._readable(item):
                            await sink.send(message)
            self._ended.set()

        task = asyncio.create_task(forward())
        try:
            yield incoming
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            sink.close()
            incoming.close()

    def _readable(self, item: Any) -> Sequence[SessionMessage]:
        """Returns the messages of an item of a stream: one, or the errors that replace it."""
        match item:
            case SessionMessage():
                unreadable = without_id(item.message)
                if unreadable is None:
                    return [_of_one_request(item)]
            case ValidationError():
                unreadable = unreadable_answer(item)
            case UnreadableAnswer():
                unreadable = item
            case _:
                unreadable = None
        if unreadable is None:
            return []
        if not unreadable.ids:
            self._fail_only_request(unreadable.text)
        return unreadable.messages()

    def _fail_only_request(self, text: str) -> None:
        """Fails the request that waits, if it is the only one; it cannot be chosen from several."""
        if not self._ready.done():
            self._ready.set_exception(ConnectError(text[:MAX_ERROR]))
            self._ready.exception()
        elif len(self._unreadable) == 1:
            [waiting] = self._unreadable
            if not waiting.done():
                waiting.set_result(text)

    async def _first_of(self, *events: asyncio.Event) -> None:
        tasks = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()


def _of_one_request(item: SessionMessage) -> SessionMessage:
    """Returns a message with another error code if the SDK uses its code for a lost connection.

    Many servers use the code for all their errors (JSON-RPC reserves it for them). An error that
    arrives ends one request, and neither the connection nor its other requests.
    """
    message = item.message
    if not isinstance(message, types.JSONRPCError) or message.error.code != types.CONNECTION_CLOSED:
        return item
    error = message.error.model_copy(update={"code": types.INTERNAL_ERROR})
    return SessionMessage(message.model_copy(update={"error": error}), item.metadata)


def _leaf(error: BaseException) -> BaseException:
    """Returns the first error of a task group that is not a cancellation."""
    while isinstance(error, BaseExceptionGroup):
        inner: Sequence[BaseException] = error.exceptions
        error = next((e for e in inner if not isinstance(e, asyncio.CancelledError)), inner[0])
    return error


def _description(error: BaseException) -> str:
    match error:
        case ConnectError() | MCPError():
            return str(error)
        case httpx2.HTTPStatusError():
            return f"it answered {status_text(error.response.status_code)}"
        case httpx2.ConnectError() if not str(error) or "attempts" in str(error):
            return "no server answers at this address"
        case httpx2.TimeoutException():
            return "it did not answer in time"
        case httpx2.HTTPError():
            return str(error) or "its answer is not valid HTTP"
        case ValueError():
            return "its answer is not valid MCP"
        case RuntimeError() if "protocol version" in str(error):
            # The SDK has no class for it; the text names the version.
            return str(error)
        case _:
            return f"the connection failed: {type(error).__name__}"
