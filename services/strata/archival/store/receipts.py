"""Stores responses of requests in the same transaction as their changes, for repetitions."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from strata.archival.domain.passages import RequestKey
from strata.archival.store.rows import from_json
from strata.protocol.errors import AlreadyExistsError, Reason
from strata.shared.context import current_project
from strata.shared.db import Database

_FIND = text(
    "SELECT digest, response FROM archival.receipts"
    " WHERE project_id = :project AND request_id = :request"
)
_HOLD = text(f"{_FIND.text} FOR UPDATE")
# Waits for a transaction of the same request and then does nothing.
_TAKE = text(
    "INSERT INTO archival.receipts (project_id, request_id, digest, response)"
    " VALUES (:project, :request, :digest, 'null') ON CONFLICT DO NOTHING"
)
_ANSWER = text(
    "UPDATE archival.receipts SET response = CAST(:response AS jsonb), create_time = now()"
    " WHERE project_id = :project AND request_id = :request"
)
_FORGET = text(
    """
    DELETE FROM archival.receipts WHERE (project_id, request_id) IN (
        SELECT project_id, request_id FROM archival.receipts
        WHERE create_time < now() - CAST(:age AS interval)
        ORDER BY create_time LIMIT :count)
    """
)
_BATCH = 1_000
_PAUSE = timedelta(hours=1)


async def answered(connection: AsyncConnection, request: RequestKey, *, lock: bool = False) -> Any:
    """Returns the stored response of a request; None if there is none.

    Args:
        connection: In a transaction.
        request: The request.
        lock: Lock the row, so that repetitions wait for the end of the transaction.

    Raises:
        AlreadyExistsError: ``REQUEST_ID_REUSED``: the id was used for something else.
    """
    values = {"project": current_project(), "request": request.id}
    row = (await connection.execute(_HOLD if lock else _FIND, values)).one_or_none()
    if row is None:
        return None
    if row.digest != request.digest:
        raise reused(request.id)
    return from_json(row.response)


async def is_answered(connection: AsyncConnection, request_id: str) -> bool:
    """Says whether a request with this id, of any content, has a stored response."""
    result = await connection.execute(_FIND, {"project": current_project(), "request": request_id})
    return result.one_or_none() is not None


async def take(connection: AsyncConnection, request: RequestKey, *, lock: bool = False) -> Any:
    """Reserves the id of a request in the transaction, or returns the stored response.

    Args:
        connection: In a transaction.
        request: The request; without an id nothing is reserved.
        lock: As for `answered`.

    Raises:
        AlreadyExistsError: ``REQUEST_ID_REUSED``: the id was used for something else.
    """
    if not request.id:
        return None
    values = {"project": current_project(), "request": request.id, "digest": request.digest}
    if (await connection.execute(_TAKE, values)).rowcount:
        return None
    return await answered(connection, request, lock=lock)


async def answer(connection: AsyncConnection, request: RequestKey, response: Any) -> None:
    """Stores the response of a request whose id was reserved with `take`."""
    if request.id:
        await connection.execute(
            _ANSWER,
            {
                "project": current_project(),
                "request": request.id,
                "response": json.dumps(response, ensure_ascii=False),
            },
        )


def reused(request_id: str) -> AlreadyExistsError:
    """Returns the error for an id that was used for another request."""
    return AlreadyExistsError(
        f"The request_id {request_id!r} was used before for something else.",
        reason=Reason.REQUEST_ID_REUSED,
        metadata={"request_id": request_id},
    )


class ReceiptLog:
    """Deletes old receipts of all projects.

    Args:
        worker: Connects with the worker role.
        keep: How long repetitions are recognised.
    """

    def __init__(self, worker: Database, keep: timedelta) -> None:
        self._worker = worker
        self._keep = keep

    async def delete_old(self) -> int:
        """Deletes receipts that are older than `keep`; returns their number."""
        total = 0
        while True:
            async with self._worker.system_transaction() as connection:
                result = await connection.execute(_FORGET, {"age": self._keep, "count": _BATCH})
            total += result.rowcount
            if result.rowcount < _BATCH:
                return total

    async def run(self) -> None:
        """Deletes old receipts once an hour, until cancelled."""
        while True:
            await self.delete_old()
            await asyncio.sleep(_PAUSE.total_seconds())
