"""TCP ports on loopback for the processes of a local Strata."""

from __future__ import annotations

import secrets
import socket
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from strata.protocol.errors import UnavailableError

EXIT_PORT_TAKEN = 76
"""Exit code of a child whose port is used by another process."""

_LOOPBACK = "127.0.0.1"
_NEXT_PORTS = 20
_TRIES = 20
_LOWEST_PORT = 10_240
# The first and the last port that Linux uses for outgoing connections.
_PORTS_OF_CONNECTIONS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_FIRST_PORT = 32_768


def pick_port(preferred: int | None = None) -> int:
    """Returns `preferred` if it is free on loopback, else another free port.

    The other one is outside the range from which the system takes ports for outgoing connections,
    because one of those could take it before it is used.
    """
    for port in _candidates(preferred):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_LOOPBACK, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise UnavailableError("no free TCP port on 127.0.0.1")


def _candidates(preferred: int | None) -> Iterator[int]:
    if preferred:
        yield preferred
    count = _first_port_of_connections() - _LOWEST_PORT
    if count > 0:
        # Not by `random`, which tests seed: processes that start at once must pick others.
        yield from (_LOWEST_PORT + secrets.randbelow(count) for _ in range(_TRIES))
    yield 0


def _first_port_of_connections() -> int:
    try:
        return int(_PORTS_OF_CONNECTIONS.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _USUAL_FIRST_PORT


class PortClaims:
    """The ports of one local Strata, which no other one on this machine chooses meanwhile.

    A port is chosen, and announced, seconds before it is bound: the engines start in between. A
    claim is an abstract Unix socket (Linux): it ends with its process and holds for the same
    network namespace as the port. On other systems only this object excludes its ports.
    """

    def __init__(self) -> None:
        self._claims: dict[int, socket.socket | None] = {}

    @property
    def ports(self) -> Collection[int]:
        """The claimed ports."""
        return self._claims.keys()

    def claim(self, port: int) -> bool:
        """Claims a port, whether it is free or not; returns False if it is claimed already."""
        if port in self._claims:
            return False
        if sys.platform != "linux":
            self._claims[port] = None
            return True
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0strata-port-{port}")
        except OSError:
            claim.close()
            return False
        self._claims[port] = claim
        return True

    def pick(self, preferred: int | None = None) -> int:
        """Claims and returns `preferred` if it is free, else another port, as `pick_port` does."""
        port = pick_port(preferred)
        for _ in range(_TRIES):
            if self.claim(port):
                return port
            port = pick_port()
        raise UnavailableError("no free TCP port on 127.0.0.1")

    def next_free(self, preferred: int) -> int:
        """Claims and returns the first free port from `preferred` on; after twenty, any one."""
        for port in range(preferred, preferred + _NEXT_PORTS):
            # Claimed before the test: another process may bind the port and end its claim.
            if self.claim(port):
                if pick_port(port) == port:
                    return port
                self._release(port)
        return self.pick()

    def _release(self, port: int) -> None:
        claim = self._claims.pop(port)
        if claim is not None:
            claim.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for port in list(self._claims):
            self._release(port)


class ReservedPort:
    """A reserved port, which only processes of the same user with ``SO_REUSEPORT`` can use.

    A port that is merely free can be taken by another process or an outgoing connection before it
    is used, or while its process is being restarted. This one is bound, without listening, until
    `release`.

    Args:
        excluding: Ports that are already assigned but not bound yet.
    """

    def __init__(self, excluding: Collection[int] = ()) -> None:
        self._socket = _bound()
        while self.number in excluding:
            # Kept bound while the next one is bound, so that the next one differs.
            with self._socket:
                self._socket = _bound()

    @property
    def number(self) -> int:
        """The port."""
        return int(self._socket.getsockname()[1])

    def release(self) -> None:
        """Releases the port; a process that listens on it by then keeps it."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def _bound() -> socket.socket:
    bound_socket = socket.socket()
    bound_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        # For port 0 the kernel chooses a port that no other socket uses, despite the options.
        bound_socket.bind((_LOOPBACK, 0))
    except OSError as error:
        bound_socket.close()
        raise UnavailableError("no free TCP port on 127.0.0.1") from error
    return bound_socket
