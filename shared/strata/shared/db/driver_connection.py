"""Connections of the driver that notice a vanished server, and learn built-in types only once.

A server that is gone without closing its connections, as after a power failure or a fail-over to
another machine, never answers. The driver sets no limit: the kernel would send a statement again
for a quarter of an hour, and would wait forever for the rows of one that the server had received.

The driver has codecs for the built-in types, but of their arrays only for ``text[]`` and a few.
Each connection queries the catalogue for the others at their first use. That takes three round
trips and 5 to 10 ms of CPU time, most of it for planning a recursive query. The result is the same
for all connections, because the numbers of the built-in types are the same in all databases. There
is no public way to give it to the driver (MagicStack/asyncpg#1272), so its method is overridden.
"""

from __future__ import annotations

import socket
from asyncio import BaseTransport
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import asyncpg


class Row(asyncpg.Record):
    """A row of a result: its values by position, by name, and as attributes."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    else:

        def __getattr__(self, name):
            try:
                return self[name]
            except KeyError:
                raise AttributeError(f"the row has no column {name!r}") from None


if TYPE_CHECKING:
    _Base = asyncpg.Connection[Row]
else:
    _Base = asyncpg.Connection

_IDLE_SECONDS = 10
_PROBE_SECONDS = 5
_SILENT_SECONDS = 20
"""Seconds without an acknowledgement of the server's machine after which a connection is broken.

A server whose process is suspended is not affected: its kernel acknowledges.
"""

# The numbers below are given by hand, and kept in all versions of PostgreSQL.
_FIRST_GENERATED_OID = 10_000


@dataclass(frozen=True)
class _NoStatement:
    """Stands for the statement of the query. Its name proves that no other one was replaced."""

    name: str = "none"


_builtin_types: dict[frozenset[int], Any] = {}


class DriverConnection(_Base):
    """A connection of the driver."""

    def __init__(self, protocol: Any, transport: BaseTransport, *options: Any) -> None:
        super().__init__(protocol, transport, *options)
        _limit_silence(transport.get_extra_info("socket"))

    async def _introspect_types(self, typeoids: Iterable[int], *timeout: Any) -> Any:
        """Returns the descriptions of types, and the statement that has asked for them."""
        requested = frozenset(typeoids)
        if max(requested) >= _FIRST_GENERATED_OID:
            return await self._ask(requested, *timeout)
        if requested in _builtin_types:
            return _builtin_types[requested], _NoStatement()
        descriptions, statement = await self._ask(requested, *timeout)
        _builtin_types[requested] = descriptions
        return descriptions, statement

    async def _ask(self, type_ids: frozenset[int], *timeout: Any) -> Any:
        driver: Any = super()
        return await driver._introspect_types(type_ids, *timeout)  # noqa: SLF001 - of the base class


def _limit_silence(connected: socket.socket) -> None:
    """Lets the kernel end a connection whose peer acknowledges nothing, data or probes."""
    if connected.family == socket.AF_UNIX:
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, _IDLE_SECONDS),
        (socket.TCP_KEEPINTVL, _PROBE_SECONDS),
        (socket.TCP_USER_TIMEOUT, _SILENT_SECONDS * 1000),
    ):
        connected.setsockopt(socket.IPPROTO_TCP, option, value)
