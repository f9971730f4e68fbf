"""Connections of the driver that learn the built-in types of PostgreSQL once per process.

The driver has codecs for the built-in types, but of their arrays only for ``text[]`` and a few.
Each connection queries the catalogue for the others at their first use. That takes three round
trips and 5 to 10 ms of CPU time, most of it for planning a recursive query. The result is the same
for all connections, because the numbers of the built-in types are the same in all databases. There
is no public way to give it to the driver (MagicStack/asyncpg#1272), so its method is overridden.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import asyncpg

if TYPE_CHECKING:
    _Base = asyncpg.Connection[asyncpg.Record]
else:
    _Base = asyncpg.Connection

# The numbers below are given by hand, and kept in all versions of PostgreSQL.
_FIRST_GENERATED_OID = 10_000


@dataclass(frozen=True)
class _NoStatement:
    """Stands for the statement of the query. Its name proves that no other one was replaced."""

    name: str = "none"


_builtin_types: dict[frozenset[int], Any] = {}


class DriverConnection(_Base):
    """A connection of the driver."""

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
