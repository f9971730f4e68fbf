"""Makes calls fail that take a second database connection while they hold one for their project.

A project has a limited number of connections. If each of its calls held one and waited for a second
one, they would deadlock.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

from strata.shared.db import Database, DatabaseConnection


@dataclass(eq=False)
class _Holding:
    """A transaction of a project, which is open or was."""

    slots: object
    is_open: bool = True


def port_and_name(url: str) -> tuple[int | None, str | None]:
    """Returns the port and the name of the database of a URL."""
    parsed = urlsplit(url)
    return parsed.port, parsed.path.removeprefix("/")


_holdings: ContextVar[tuple[_Holding, ...]] = ContextVar("holdings", default=())


@contextmanager
def refuse_nested_transactions(
    databases: Container[tuple[int | None, str | None]],
) -> Iterator[None]:
    """Makes transactions and statements of projects fail inside a transaction of the same database.

    Tasks that are started in a transaction count as inside of it until it ends. Transactions of the
    worker role, which has no share, may be nested.

    Args:
        databases: Ports and names of the databases that are checked. Others are not, because tests
            of other folders may hold one transaction and check its effects in a second one.
    """
    run, check_out = Database._run, Database._checkout

    @asynccontextmanager
    async def noting(
        self: Database, begin: str, tenant: str, **options: Any
    ) -> AsyncIterator[DatabaseConnection]:
        async with run(self, begin, tenant, **options) as connection:
            holding = _Holding(self._slots)
            open_ones = (one for one in _holdings.get() if one.is_open)
            _holdings.set((*open_ones, holding))
            try:
                yield connection
            finally:
                holding.is_open = False

    async def checking(self: Database, tenant: str, **options: Any) -> Any:
        held = any(one.is_open and one.slots is self._slots for one in _holdings.get())
        refused = tenant and held and port_and_name(self._options.url) in databases
        assert not refused, "a second connection is taken while one is held"
        return await check_out(self, tenant, **options)

    with patch.object(Database, "_run", noting), patch.object(Database, "_checkout", checking):
        yield
