"""Runs a request once: repetitions with the same request id get the stored response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from strata.core_memory.domain.core_memory import Receipt
from strata.core_memory.domain.ports import ReplayedError, RequestKey
from strata.protocol.errors import AlreadyExistsError, Reason, UnavailableError
from strata.shared.context import current_project
from strata.shared.db import Database

ResultT = TypeVar("ResultT")

_ATTEMPTS = 3

_SEEN = text(
    "SELECT digest, response FROM core_memory.requests"
    " WHERE project_id = :project AND request_id = :request"
)
_NOTE = text(
    """
    INSERT INTO core_memory.requests (project_id, request_id, digest, response)
    VALUES (:project, :request, CAST(:digest AS bytea), CAST(:response AS bytea))
    ON CONFLICT (project_id, request_id) DO NOTHING
    """
)


class LostRaceError(Exception):
    """A concurrent transaction did the same first; the next attempt sees its changes."""


async def once(
    database: Database,
    receipt: Receipt[ResultT],
    work: Callable[[AsyncConnection], Awaitable[ResultT]],
) -> ResultT:
    """Runs `work` in one transaction of the calling project, and stores its response.

    Runs it again if it raises `LostRaceError`.

    Raises:
        ReplayedError: The request was done before.
        AlreadyExistsError: Its id was used for something else (``REQUEST_ID_REUSED``).
        UnavailableError: It lost every race.
    """
    for _ in range(_ATTEMPTS):
        try:
            async with database.transaction() as connection:
                await check_request(connection, receipt.request)
                result = await work(connection)
                await _note(connection, receipt, result)
                return result
        except LostRaceError:
            continue
    raise UnavailableError("Concurrent requests changed the same data; try again.", retry_after=0.1)


async def check_request(connection: AsyncConnection, request: RequestKey) -> None:
    """Raises `ReplayedError` if the request was done before.

    Raises:
        AlreadyExistsError: Its id was used for something else (``REQUEST_ID_REUSED``).
    """
    if not request.id:
        return
    bound = {"project": current_project(), "request": request.id}
    row = (await connection.execute(_SEEN, bound)).first()
    if row is None:
        return
    if row.digest != request.digest:
        raise AlreadyExistsError(
            f"The request_id {request.id!r} was used before for something else.",
            reason=Reason.REQUEST_ID_REUSED,
            metadata={"request_id": request.id},
        )
    raise ReplayedError(row.response)


async def _note(connection: AsyncConnection, receipt: Receipt[ResultT], result: ResultT) -> None:
    if not receipt.request.id:
        return
    noted = await connection.execute(
        _NOTE,
        {
            "project": current_project(),
            "request": receipt.request.id,
            "digest": receipt.request.digest,
            "response": receipt.encode(result),
        },
    )
    if noted.rowcount == 0:
        raise LostRaceError
