"""Ports on loopback for what we start."""

from __future__ import annotations

import socket
from collections.abc import Collection
from types import TracebackType
from typing import Self

from strata.shared.errors import UnavailableError

EXIT_PORT_TAKEN = 76
"""How a child ends whose port somebody else has."""

_LOOPBACK = "127.0.0.1"


def pick_port(preferred: int | None = None) -> int:
    """Returns `preferred` if nothing listens on it on loopback, else a port that is free now."""
    for port in (preferred, 0):
        if port is None:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_LOOPBACK, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise UnavailableError("no free TCP port on 127.0.0.1")


class ReservedPort:
    """A port that only those get who ask for it with ``SO_REUSEPORT``, as the same user.

    A free port that is only looked up can be given to somebody else before it is used, or while
    its user is being restarted: to the next one who looks, or to any outgoing connection. This
    one is bound, without listening, until `release`.

    Args:
        excluding: Ports promised to others that are not bound yet.
    """

    def __init__(self, excluding: Collection[int] = ()) -> None:
        self._socket = _bound()
        while self.number in excluding:
            # Held while the next one is bound, so that it is another one.
            with self._socket:
                self._socket = _bound()

    @property
    def number(self) -> int:
        """The port."""
        return int(self._socket.getsockname()[1])

    def release(self) -> None:
        """Gives the port up; who listens on it by then keeps it."""
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
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        # For port 0 the kernel takes none that another one has, whatever the options.
        held.bind((_LOOPBACK, 0))
    except OSError as error:
        held.close()
        raise UnavailableError("no free TCP port on 127.0.0.1") from error
    return held
