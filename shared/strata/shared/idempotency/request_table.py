"""Tables of stored responses, so that a repeated request gets the first response again.

A service stores the response of a request in the same transaction as its effect. A repetition
finds the response and has no effect. There are two kinds of tables, by the time at which a
transaction writes the request:

- `ClaimedRequestTable`: first. A concurrent repetition waits for the first transaction when it
  claims the id, and then gets the response.
- `RecordedRequestTable`: last, for transactions that lock other rows first. Of concurrent
  transactions all but one fail with `LostRaceError` and are run again, see `run_once`. One that
  waited for such a lock may also be refused because of the effect of the first, see `answered_or`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from strata.protocol.errors import StrataError, UnavailableError
from strata.shared.context import current_project
from strata.shared.db import DatabaseConnection, sql
from strata.shared.db.batched_deletion import delete_in_batches
from strata.shared.db.database import Database
from strata.shared.idempotency.keys import RequestKey, check_same_request
from strata.shared.polling import keep_polling

ResultT = TypeVar("ResultT")

_ATTEMPTS = 3
_EVERY_S = 3600.0
_IS_REQUEST = "project_id = :project AND request_id = :request"
REQUESTS_KEPT = timedelta(days=7)
"""How long a repeated request id is recognised: longer than any client repeats a request."""


ANY_SUBJECT = "*"
"""The subject of a response that may hold any number of objects."""


class LostRaceError(Exception):
    """A concurrent transaction stored the same request first; the next attempt sees its changes."""


class ColumnType(Enum):
    """PostgreSQL type of a column of digests or responses."""

    BYTES = "bytea"
    JSON = "jsonb"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class TableLayout:
    """Names and types of the columns that differ between the tables of the services.

    Attributes:
        response_type: Decides what a response is: bytes, a JSON value or a string.
        response: Column of the response.
        digest: Column of the digest: text, or bytea of the bytes of a hexadecimal digest.
        digest_type: `ColumnType.TEXT` or `ColumnType.BYTES`.
        subject: Column with the id of the only object that a response holds; empty if the table has
            none. Its default is `ANY_SUBJECT`.
    """

    response_type: ColumnType
    response: str = "response"
    digest: str = "digest"
    digest_type: ColumnType = ColumnType.TEXT
    subject: str = ""


class RequestTable:
    """The table of stored responses of one service.

    It has a primary key of ``project_id`` and ``request_id``, and ``create_time`` with an index.

    Args:
        name: Name with schema.
        layout: Its other columns.
    """

    def __init__(self, name: str, layout: TableLayout) -> None:
        self._layout = layout
        digest, response, subject = layout.digest, layout.response, layout.subject
        more_columns, more_values = (f", {subject}", ", :request_subject") if subject else ("", "")
        self.insert = (
            f"INSERT INTO {name} (project_id, request_id, {digest}, {response}{more_columns})"
            f" SELECT :project, :request, CAST(:request_digest AS {layout.digest_type.value}),"
            f" CAST(:request_response AS {layout.response_type.value}){more_values}"
            " WHERE CAST(:request AS text) <> ''"
        )
        """Inserts a request; `values` has the parameters. Larger statements can include it."""
        self.columns = f"s.{digest} AS request_digest, s.{response} AS request_response"
        """The columns of a stored request ``s``, for `replayed`."""
        find = f"SELECT {self.columns} FROM {name} s WHERE {_IS_REQUEST}"
        self._find = sql(find)
        self._lock = sql(f"{find} FOR UPDATE")
        # Waits for a transaction with the same id, and then does nothing.
        self._insert = sql(f"{self.insert} ON CONFLICT (project_id, request_id) DO NOTHING")
        self._delete = sql(
            f"DELETE FROM {name} WHERE (project_id, request_id) IN ("
            f" SELECT project_id, request_id FROM {name}"
            " WHERE create_time < now() - CAST(:age AS interval)"
            " ORDER BY create_time LIMIT :count)"
        )

    def values(
        self, request: RequestKey, response: Any = None, subject: str = ANY_SUBJECT
    ) -> dict[str, Any]:
        """Returns the parameters of `insert`.

        Args:
            request: The request.
            response: Its response; None for a placeholder.
            subject: The id of the only object that the response holds, in a table with subjects.
        """
        values = {
            "project": current_project(),
            "request": request.id,
            "request_digest": self._stored_digest(request),
            "request_response": self._stored_response(response),
        }
        return {**values, "request_subject": subject} if self._layout.subject else values

    def replayed(self, request: RequestKey, row: Any) -> Any:
        """Returns the stored response in a row with `columns`; None if there is none.

        Raises:
            AlreadyExistsError: ``REQUEST_ID_REUSED``: the id was used for another request.
        """
        if row.request_digest is None:
            return None
        check_same_request(request.id, row.request_digest, self._stored_digest(request))
        response = row.request_response
        if self._layout.response_type is ColumnType.JSON and isinstance(response, str):
            return json.loads(response)
        return response

    async def find(
        self, connection: DatabaseConnection, request: RequestKey, *, lock: bool = False
    ) -> Any:
        """Returns the stored response of a request of the calling project; None if there is none.

        Args:
            connection: In a transaction.
            request: The request.
            lock: Lock the row, so that repetitions wait for the end of the transaction.

        Raises:
            AlreadyExistsError: ``REQUEST_ID_REUSED``: the id was used for another request.
        """
        if not request.id:
            return None
        values = {"project": current_project(), "request": request.id}
        result = await connection.execute(self._lock if lock else self._find, values)
        row = result.one_or_none()
        return None if row is None else self.replayed(request, row)

    async def delete_expired(self, worker: Database, keep: timedelta = REQUESTS_KEPT) -> int:
        """Deletes requests of all projects that are older than `keep`; returns their number.

        Args:
            worker: Connects with the worker role.
            keep: How long repetitions are recognised.
        """
        return await delete_in_batches(worker, self._delete, {"age": keep})

    async def delete_expired_hourly(self, worker: Database) -> None:
        """Deletes expired requests once an hour, until cancelled; see `delete_expired`."""
        await keep_polling(
            partial(self.delete_expired, worker), _EVERY_S, "expired requests are not deleted"
        )

    def _stored_digest(self, request: RequestKey) -> str | bytes:
        is_bytes = self._layout.digest_type is ColumnType.BYTES
        return bytes.fromhex(request.digest) if is_bytes else request.digest

    def _stored_response(self, response: Any) -> str | bytes:
        match self._layout.response_type:
            case ColumnType.JSON:
                return json.dumps(response, ensure_ascii=False)
            case ColumnType.BYTES:
                return b"" if response is None else bytes(response)
            case ColumnType.TEXT:
                return "" if response is None else str(response)


class ClaimedRequestTable(RequestTable):
    """A table in which a transaction reserves the id of its request before it does anything else.

    `claim` comes first and `answer` last. `keep` does both, if the response is known at once.

    Args:
        name: Name with schema.
        layout: Its columns.
    """

    def __init__(self, name: str, layout: TableLayout) -> None:
        super().__init__(name, layout)
        response = layout.response
        set_subject = f", {layout.subject} = :request_subject" if layout.subject else ""
        # Sets the time again: parts of a resumable request may arrive hours apart.
        self._answer = sql(
            f"UPDATE {name}"
            f" SET {response} = CAST(:request_response AS {layout.response_type.value}),"
            f" create_time = now(){set_subject} WHERE {_IS_REQUEST}"
        )
        self._keep = sql(
            f"WITH inserted AS ({self.insert} ON CONFLICT DO NOTHING RETURNING {response})"
            f" SELECT {response} FROM inserted UNION ALL"
            f" SELECT {response} FROM {name} WHERE {_IS_REQUEST}"
            f" AND {layout.digest} = CAST(:request_digest AS {layout.digest_type.value})"
        )

    async def claim(
        self, connection: DatabaseConnection, request: RequestKey, *, lock: bool = False
    ) -> Any:
        """Reserves the id of a request in the transaction, or returns the stored response.

        Waits for a concurrent transaction that has the id reserved. Without an id nothing is
        reserved.

        Args:
            connection: In a transaction, which must `answer` the request.
            request: The request.
            lock: As for `find`.

        Returns:
            The stored response; None if the request is new.

        Raises:
            AlreadyExistsError: ``REQUEST_ID_REUSED``: the id was used for another request.
        """
        if not request.id:
            return None
        if (await connection.execute(self._insert, self.values(request))).rowcount:
            return None
        return await self.find(connection, request, lock=lock)

    async def answer(
        self,
        connection: DatabaseConnection,
        request: RequestKey,
        response: Any,
        subject: str = ANY_SUBJECT,
    ) -> None:
        """Stores the response of a request whose id was reserved with `claim`.

        Args:
            connection: In the transaction of the claim.
            request: The request.
            response: Its response.
            subject: As for `values`.
        """
        if request.id:
            values = self.values(request, response, subject)
            del values["request_digest"]
            await connection.execute(self._answer, values)

    async def keep(
        self,
        connection: DatabaseConnection,
        request: RequestKey,
        response: Any,
        subject: str = ANY_SUBJECT,
    ) -> Any:
        """Stores a response unless there is one, and returns the stored one, in one statement.

        Args:
            connection: In a transaction.
            request: The request.
            response: Its response.
            subject: As for `values`; empty if it holds no objects.

        Returns:
            The stored response; None if the id was used for another request.
        """
        values = self.values(request, response, subject)
        return (await connection.execute(self._keep, values)).scalar_one_or_none()


class RecordedRequestTable(RequestTable):
    """A table in which a transaction stores its request at the end, with the response.

    `find` comes first and `record` last. Larger statements can do the same: with `join` and
    `columns` they find the request, and with `insert` they record it.

    Args:
        name: Name with schema.
        layout: Its columns.
    """

    def __init__(self, name: str, layout: TableLayout) -> None:
        super().__init__(name, layout)
        self.join = f"LEFT JOIN {name} s ON s.project_id = :project AND s.request_id = :request"
        """Joins the stored request to a statement, for `replayed`; with `columns`."""

    async def record(
        self,
        connection: DatabaseConnection,
        request: RequestKey,
        response: Any,
        subject: str = ANY_SUBJECT,
    ) -> None:
        """Stores a request with its response, at the end of its transaction.

        Args:
            connection: In the transaction.
            request: The request.
            response: Its response.
            subject: As for `values`.

        Raises:
            LostRaceError: A concurrent transaction has stored a request with this id.
        """
        if request.id:
            result = await connection.execute(self._insert, self.values(request, response, subject))
            if not result.rowcount:
                raise LostRaceError


async def run_once(
    database: Database, work: Callable[[DatabaseConnection], Awaitable[ResultT]]
) -> ResultT:
    """Runs `work` in a transaction of the calling project; again if it raises `LostRaceError`.

    Raises:
        UnavailableError: A concurrent transaction was first in every attempt.
    """
    for _ in range(_ATTEMPTS):
        try:
            async with database.transaction() as connection:
                return await work(connection)
        except LostRaceError:
            continue
    raise UnavailableError("Concurrent requests changed the same data; try again.", retry_after=0.1)


async def answered_or(
    work: Awaitable[ResultT], find_answer: Callable[[], Awaitable[ResultT | None]]
) -> ResultT:
    """Returns the result of `work`; if it fails, the stored answer of a concurrent call.

    A concurrent call with the same request id may have caused the failure: the name is taken by
    what it created, or the object that it deleted is missing. That call committed after this one
    looked for a stored answer.

    Args:
        work: Carries out the request, and has no transaction open when it fails.
        find_answer: Finds the answer that is stored for the request id, in a new transaction; None
            if there is none. It raises an error if the id was used for another request.
    """
    try:
        return await work
    except StrataError:
        answer = await find_answer()
        if answer is None:
            raise
        return answer
