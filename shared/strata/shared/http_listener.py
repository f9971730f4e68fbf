"""Listens for HTTP in the process of a service, in its event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

import grpc.aio
import uvicorn

from strata.shared.http_connection import HttpConnection
from strata.shared.service import ListenError
from strata.shared.tls import ServerTls

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

EXTENSIONS = "extensions"
ENDING = "strata.ending"
"""Extension in the scope of each request: the `asyncio.Event` that is set when the listener is
stopped. Endless responses then end."""

# Clients keep connections for about a minute and send on one that was just closed if the server is
# quicker.
_KEEP_ALIVE_S = 75
_BACKLOG = 1024
# How often the header Date is set. The loop of uvicorn wakes ten times as often.
_TICK_S = 1.0


class HttpListener:
    """Serves an ASGI application over HTTP/1.1.

    Args:
        make_application: Makes the application, with a channel to the service.
        host: Address to listen on.
        port: Port; 0 lets the system choose.
        tls: Files of the certificate; None for no TLS.
    """

    def __init__(
        self,
        make_application: Callable[[grpc.aio.Channel], Application],
        host: str,
        port: int,
        tls: ServerTls | None = None,
    ) -> None:
        self._make_application = make_application
        self._host = host
        self._port = port
        self._tls = tls
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The bound port; 0 before `start` if the system chooses it."""
        return self._port

    async def start(self, channel: grpc.aio.Channel) -> None:
        """Listens; see `strata.shared.service.Listener`.

        Raises:
            ListenError: The address cannot be bound.
            FailedPreconditionError: The files of the certificate cannot be used.
        """
        listening = _listen(self._host, self._port)
        self._port = int(listening.getsockname()[1])
        ending = asyncio.Event()
        config = uvicorn.Config(
            _with_ending(self._make_application(channel), ending),
            http=HttpConnection,
            lifespan="off",
            log_config=None,
            access_log=False,
            ws="none",
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            ssl_context_factory=None if self._tls is None else _context_of(self._tls),
        )
        self._server = _Server(config, ending)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listening]))
        ready = asyncio.create_task(self._server.ready.wait())
        await asyncio.wait((self._serving, ready), return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._serving.done():
            self._serving.result()

    async def stop(self) -> None:
        """Refuses new connections and returns when the open requests have ended."""
        if self._server is not None and self._serving is not None:
            self._server.ending.set()
            await asyncio.wait((self._serving,))

    def abort(self) -> None:
        """Ends the open requests."""
        if self._server is not None:
            self._server.force_exit = True


class _Server(uvicorn.Server):
    """A server that leaves the signals to its process.

    Attributes:
        ready: Set when it accepts connections.
        ending: Set it to refuse new connections and to end with the open requests.
    """

    def __init__(self, config: uvicorn.Config, ending: asyncio.Event) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self.ending = ending

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def main_loop(self) -> None:
        while not self.ending.is_set():
            await self.on_tick(0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self.ending.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _with_ending(application: Application, ending: asyncio.Event) -> Application:
    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        extensions = {**scope.get(EXTENSIONS, {}), ENDING: ending}
        await application({**scope, EXTENSIONS: extensions}, receive, send)

    return call


def _listen(host: str, port: int) -> socket.socket:
    address = "127.0.0.1" if host == "localhost" else host.strip("[]")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        problem = error.strerror or str(error)
        raise ListenError(f"cannot listen on {host}:{port} for HTTP: {problem}") from error


def _context_of(tls: ServerTls) -> Callable[[uvicorn.Config, object], ssl.SSLContext]:
    return lambda _, __: tls.context()
