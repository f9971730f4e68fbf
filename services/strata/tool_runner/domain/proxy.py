"""Interface of the proxies through which calls reach their hosts."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Protocol


class Proxy(Protocol):
    """The HTTP proxy of one call, through which it reaches its hosts."""

    async def serve(self, listener: socket.socket) -> None:
        """Starts to serve on a listening socket of the call, and takes ownership of the socket.

        Raises:
            OSError: The socket cannot be served, or the proxy is closed.
        """
        ...

    async def close(self) -> None:
        """Closes all connections and the socket."""
        ...


# Creates the proxy of a call that may reach the given hosts.
Proxies = Callable[[Sequence[str]], Proxy]
