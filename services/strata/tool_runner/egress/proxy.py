"""The HTTP proxy of one call. It forwards requests only to the allowed hosts of the tool."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

from strata.protocol.errors import StrataError
from strata.shared.context import current, use
from strata.shared.web.addresses import Address
from strata.shared.web.errors import ForbiddenUrlError
from strata.shared.web.host_patterns import listed
from strata.shared.web.url_guard import TargetCheck, UrlTarget
from strata.tool_runner.egress.requests import ProxyError, ProxyRequest, check_name, read_request

_CHUNK = 1 << 16
_MOST_ADDRESSES = 4
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_UNPRINTABLE = re.compile(r"[^ -~]")
_MAX_MESSAGE = 300
# struct linger: on, zero seconds, so that closing the socket resets the connection.
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """Network limits of one call. Its duration is limited by the time limit of the call.

    Attributes:
        connections: Maximum number of concurrent connections.
        requests: Maximum number of requests.
        bytes: Bytes in both directions together.
        header_bytes: Size of a request head.
        head_s: Seconds to receive a request head.
        connect_s: Seconds to resolve and reach a server.
    """

    connections: int = 32
    requests: int = 500
    bytes: int = 64 << 20
    header_bytes: int = 16 << 10
    head_s: float = 10.0
    connect_s: float = 10.0


class EgressProxy:
    """Serves one call on a listening socket from its network namespace.

    Args:
        hosts: The hosts that the call may reach, in the syntax of `domain.hosts`.
        admission: Resolves names and checks the addresses.
        limits: Limits of the call.
    """

    def __init__(self, hosts: Sequence[str], admission: TargetCheck, limits: ProxyLimits) -> None:
        self._hosts = tuple(hosts)
        self._admission = admission
        self._limits = limits
        self._remaining_bytes = limits.bytes
        self._requests = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        # Connections are served in the context of the call that created the proxy.
        self._context = current()

    async def serve(self, listener: socket.socket) -> None:
        """Starts to serve on a listening socket, and takes ownership of the socket.

        Raises:
            OSError: The socket cannot be served, or the proxy is closed.
        """
        if self._closed or self._server is not None:
            listener.close()
            raise OSError("the proxy is closed or is already serving")
        try:
            listener.setblocking(False)
            self._server = await asyncio.start_server(
                self._accept, sock=listener, limit=self._limits.header_bytes, start_serving=False
            )
        except BaseException:
            listener.close()
            raise
        await self._server.start_serving()

    async def close(self) -> None:
        """Closes all connections and the socket."""
        self._closed = True
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if not self._closed:
                with use(self._context):
                    await self._answer(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            writer.transport.abort()
        except asyncio.CancelledError:
            # The call has ended. Nothing awaits the task of a server, so the error stops here.
            writer.transport.abort()
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self._count()
            request = await self._read(reader)
            upstream = await self._connect(request.target)
        except ProxyError as error:
            await _refuse(writer, error.status, str(error))
        except ForbiddenUrlError as error:
            await _refuse(writer, HTTPStatus.FORBIDDEN, error.message)
        except StrataError as error:
            await _refuse(writer, HTTPStatus.BAD_GATEWAY, error.message)
        except TimeoutError:
            await _refuse(writer, HTTPStatus.GATEWAY_TIMEOUT, "The server was not reached in time.")
        else:
            try:
                await self._exchange(request, (reader, writer), upstream)
            finally:
                upstream[1].transport.abort()

    def _count(self) -> None:
        limits = self._limits
        self._requests += 1
        if len(self._tasks) > limits.connections:
            problem = f"More than {limits.connections} connections at the same time."
        elif self._requests > limits.requests:
            problem = f"The call has used up its {limits.requests:,} requests."
        elif self._remaining_bytes <= 0:
            problem = f"The call has used up its {limits.bytes:,} bytes of network."
        else:
            return
        raise ProxyError(HTTPStatus.TOO_MANY_REQUESTS, problem)

    async def _read(self, reader: asyncio.StreamReader) -> ProxyRequest:
        try:
            async with asyncio.timeout(self._limits.head_s):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise ProxyError(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"The head of the request is longer than {self._limits.header_bytes:,} bytes.",
            ) from None
        except TimeoutError:
            raise ProxyError(
                HTTPStatus.REQUEST_TIMEOUT, "The request did not arrive in time."
            ) from None
        return read_request(head)

    async def _connect(
        self, target: UrlTarget
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Resolves the name once and connects to one of its checked addresses."""
        check_name(target)
        if not listed(target.host, self._hosts):
            raise ForbiddenUrlError(f"The tool's allowed_hosts do not name {target.host}.")
        async with asyncio.timeout(self._limits.connect_s):
            addresses = (await self._admission.resolve(target))[:_MOST_ADDRESSES]
            for address in addresses:
                with contextlib.suppress(OSError):
                    return await _open(address, target.port, self._limits.connect_s / 2)
        raise ProxyError(HTTPStatus.BAD_GATEWAY, f"The host {target.host} cannot be reached.")

    async def _exchange(
        self,
        request: ProxyRequest,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """Copies bytes until one side closes, or the call has used up its bytes."""
        (from_client, to_client), (from_server, to_server) = client, upstream
        if request.tunnel:
            to_client.write(_ESTABLISHED)
        else:
            to_server.write(request.head)
        body = None if request.tunnel else request.body
        sending = asyncio.ensure_future(self._send(from_client, to_server, body))
        receiving = asyncio.ensure_future(self._copy(from_server, to_client, None))
        both = {sending, receiving}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            ends = await asyncio.gather(*both, return_exceptions=True)
        if self._remaining_bytes <= 0 or any(isinstance(end, OSError) for end in ends):
            # Reset the connection: a normal close would mark an incomplete response as complete.
            connection = to_client.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            to_client.transport.abort()

    async def _send(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: int | None
    ) -> None:
        await self._copy(reader, writer, body)
        if body is not None:
            # Bytes after the body would be a second request, which has not been checked.
            await reader.read(1)

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, max_bytes: int | None
    ) -> None:
        """Copies up to `max_bytes` bytes; None means until the end."""
        while (max_bytes is None or max_bytes > 0) and self._remaining_bytes > 0:
            data = await reader.read(_CHUNK if max_bytes is None else min(_CHUNK, max_bytes))
            if not data:
                return
            self._remaining_bytes -= len(data)
            if max_bytes is not None:
                max_bytes -= len(data)
            writer.write(data)
            await writer.drain()


async def _open(
    address: Address, port: int, seconds: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        async with asyncio.timeout(seconds):
            return await asyncio.open_connection(str(address), port)
    except TimeoutError as error:
        raise OSError("not in time") from error


async def _refuse(writer: asyncio.StreamWriter, status: HTTPStatus, text: str) -> None:
    """Sends an error. The message is in the status line, too: many clients show only that."""
    message = _UNPRINTABLE.sub("?", text)[:_MAX_MESSAGE]
    body = f"{message}\n".encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}: {message}\r\nContent-Type: text/plain\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode("ascii") + body)
    await writer.drain()
