"""The proxy of one call: lets it reach the hosts that its tool names, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

from strata.shared.context import current, use
from strata.shared.errors import StrataError
from strata.shared.web.addresses import Address
from strata.shared.web.errors import ForbiddenUrlError
from strata.shared.web.url_guard import Admission, Target
from strata.tool_execution.domain.hosts import listed
from strata.tool_execution.egress.requests import ProxyError, Request, check_name, read_request

_CHUNK = 1 << 16
_MOST_ADDRESSES = 4
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_UNPRINTABLE = re.compile(r"[^ -~]")
_MAX_WORDS = 300
# struct linger: on, no seconds.
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """Most that one call may take of the network; its time is that of the call.

    Attributes:
        connections: At the same time.
        requests: In all.
        bytes: In both directions together, in all.
        header_bytes: Of the head of a request.
        head_s: Seconds for the head of a request to arrive.
        connect_s: Seconds to find and reach a server.
    """

    connections: int = 32
    requests: int = 500
    bytes: int = 64 << 20
    header_bytes: int = 16 << 10
    head_s: float = 10.0
    connect_s: float = 10.0


class EgressProxy:
    """Serves one call on a socket that came out of its network namespace.

    Args:
        hosts: What the call may reach, as `domain.hosts` has it.
        admission: Checks addresses.
        limits: Most that the call may take.
    """

    def __init__(self, hosts: Sequence[str], admission: Admission, limits: ProxyLimits) -> None:
        self._hosts = tuple(hosts)
        self._admission = admission
        self._limits = limits
        self._left = limits.bytes
        self._requests = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        # Connections are served on behalf of the call that made the proxy.
        self._context = current()

    async def serve(self, listener: socket.socket) -> None:
        """Begins to serve on a listening socket, which it closes in the end.

        Raises:
            OSError: It is none, or the proxy is closed.
        """
        if self._closed or self._server is not None:
            listener.close()
            raise OSError("the proxy is closed, or serves already")
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
        """Ends every connection and closes the socket."""
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
            # The call has ended; a task of a server that is cancelled has nobody to tell.
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
            said = f"More than {limits.connections} connections at the same time."
        elif self._requests > limits.requests:
            said = f"The call has made its {limits.requests:,} requests."
        elif self._left <= 0:
            said = f"The call has used up its {limits.bytes:,} bytes of network."
        else:
            return
        raise ProxyError(HTTPStatus.TOO_MANY_REQUESTS, said)

    async def _read(self, reader: asyncio.StreamReader) -> Request:
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

    async def _connect(self, target: Target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects to a checked address; the name is resolved once, here."""
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
        request: Request,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """Passes bytes on until one side has ended, or the call has used up its share."""
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
        if self._left <= 0 or any(isinstance(end, OSError) for end in ends):
            # With a reset: many answers end with the connection, and this one is not whole.
            connection = to_client.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            to_client.transport.abort()

    async def _send(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: int | None
    ) -> None:
        await self._copy(reader, writer, body)
        if body is not None:
            # What follows the body would be another request, which nobody has checked.
            await reader.read(1)

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most: int | None
    ) -> None:
        """Copies up to `most` bytes, or to the end."""
        while (most is None or most > 0) and self._left > 0:
            data = await reader.read(_CHUNK if most is None else min(_CHUNK, most))
            if not data:
                return
            self._left -= len(data)
            if most is not None:
                most -= len(data)
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


async def _refuse(writer: asyncio.StreamWriter, status: HTTPStatus, words: str) -> None:
    """Answers with our own words, which many clients show of the first line alone."""
    said = _UNPRINTABLE.sub("?", words)[:_MAX_WORDS]
    body = f"{said}\n".encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}: {said}\r\nContent-Type: text/plain\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode("ascii") + body)
    await writer.drain()
