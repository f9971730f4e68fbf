"""The check of the whole system's tests for nested transactions finds them."""

from __future__ import annotations

import asyncio

import pytest

from nested_transactions import port_and_name, refuse_nested_transactions
from strata.shared.db import Database, sql

_ONE = sql("SELECT 1 WHERE :project <> ''")


async def _read(database: Database) -> None:
    await database.execute(_ONE, {}, project_id="project-1", read_only=True)


async def test_nested_transactions_in_other_databases_are_not_checked(database: Database) -> None:
    with refuse_nested_transactions({(5432, "another")}):
        async with database.transaction(project_id="project-1"):
            await _read(database)


async def test_nested_transactions_of_a_project_are_found(database: Database) -> None:
    with refuse_nested_transactions({port_and_name(database._options.url)}):
        async with database.transaction(project_id="project-1"):
            with pytest.raises(AssertionError):
                await _read(database)
            task = asyncio.create_task(_read(database))
            with pytest.raises(AssertionError):
                await task
        await asyncio.gather(_read(database), _read(database))


async def test_other_transactions_may_be_nested(database: Database, worker: Database) -> None:
    with refuse_nested_transactions({port_and_name(database._options.url)}):
        async with database.transaction(project_id="project-1"):
            await worker.ping()
        async with worker.system_transaction():
            await worker.ping()
            await _read(database)
