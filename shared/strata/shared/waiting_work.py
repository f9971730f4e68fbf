"""One statement that finds which kinds of work wait in PostgreSQL.

An idle process polls for work that other processes have left, or that is due at a time. One
statement for all kinds keeps the number of statements low.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from strata.shared.db import Database, sql

KindT = TypeVar("KindT", bound=str)


def any_row_sql(table: str, condition: str, *, order: str = "project_id") -> str:
    """Returns an SQL expression that says whether a row meets a condition.

    The order makes PostgreSQL read a partial index. With EXISTS, it would read the whole table if
    its statistics are from a time when many rows met the condition.

    Args:
        table: The table.
        condition: SQL condition of its rows.
        order: The first column of the index that contains these rows.
    """
    first = f"SELECT true FROM {table} WHERE {condition} ORDER BY {order} LIMIT 1"
    return f"coalesce(({first}), false)"


class WaitingWork(Generic[KindT]):
    """Finds which of several kinds of work wait, over all projects.

    Args:
        worker: Connects with the worker role, which sees the queues of all projects.
        kinds: For each kind an SQL expression that says whether there may be work.
        values: Parameters of these expressions.
    """

    def __init__(
        self,
        worker: Database,
        kinds: Mapping[KindT, str],
        values: Mapping[str, object] | None = None,
    ) -> None:
        self._worker = worker
        self._kinds = tuple(kinds)
        self._values = values
        self._statement = sql(f"SELECT {', '.join(kinds.values())}")

    async def find(self) -> frozenset[KindT]:
        """Returns the kinds that may have work.

        Raises:
            UnavailableError: The database cannot be reached.
        """
        answers = (await self._worker.system_query(self._statement, self._values))[0]
        return frozenset(kind for kind, waits in zip(self._kinds, answers, strict=True) if waits)
