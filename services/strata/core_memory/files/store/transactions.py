"""Runs a request once: repetitions with the same request id get the stored response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from strata.core_memory.domain.core_memory import Receipt
from strata.core_memory.domain.ports import ReplayedError
from strata.core_memory.request_table import REQUESTS
from strata.shared.db import Database, DatabaseConnection
from strata.shared.idempotency.keys import RequestKey
from strata.shared.idempotency.request_table import answered_or, run_once

ResultT = TypeVar("ResultT")


async def once(
    database: Database,
    receipt: Receipt[ResultT],
    work: Callable[[DatabaseConnection], Awaitable[ResultT]],
) -> ResultT:
    """Runs `work` in one transaction of the calling project, and stores its response.

    Runs it again if a concurrent transaction has stored a request with the same id.

    Raises:
        ReplayedError: The request was done before.
        AlreadyExistsError: Its id was used for something else (``REQUEST_ID_REUSED``).
        UnavailableError: It lost every race.
    """

    async def attempt(connection: DatabaseConnection) -> ResultT:
        await _check_request(connection, receipt.request)
        result = await work(connection)
        if receipt.request.id:
            await REQUESTS.record(connection, receipt.request, receipt.encode(result))
        return result

    async def find_answer() -> None:
        async with database.transaction(read_only=True) as connection:
            await _check_request(connection, receipt.request)

    return await answered_or(run_once(database, attempt), find_answer)


async def _check_request(connection: DatabaseConnection, request: RequestKey) -> None:
    response = await REQUESTS.find(connection, request)
    if response is not None:
        raise ReplayedError(response)
