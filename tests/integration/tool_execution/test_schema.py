"""The schema of the tool-execution service: checked at start, closed to other tenants."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest

from strata.protocol.errors import FailedPreconditionError, Reason
from strata.shared.clock import SystemClock
from strata.shared.db import Database, sql
from strata.shared.ids import new_id
from strata.shared.shared_resources import SharedResources
from strata.shared.telemetry import Telemetry
from strata.tool_execution import main
from strata.tool_execution.migrations import MIGRATIONS
from strata.tool_execution.settings import ToolExecutionSettings

INSERT = sql(
    "INSERT INTO tool_execution.tools (project_id, id, name, type, description, parameters,"
    " return_char_limit, effect, version) VALUES (:project, :id, :name, 'CUSTOM', '',"
    """ '{"b": 1, "a": 2}', 50000, 'READ_ONLY', 'v')"""
)


class NoServices:
    """Wiring to services that are not called at start."""

    clock = SystemClock()
    telemetry = Telemetry()
    shared_resources = SharedResources()

    def channel(self, service: str) -> Any:
        class Channel:
            def __getattr__(self, method: str) -> Any:
                return lambda *_, **__: None

        return Channel()


async def test_a_service_does_not_start_on_a_database_without_its_schema(databases: Any) -> None:
    url = databases.url(await databases.create())
    async with AsyncExitStack() as stack:
        with pytest.raises(FailedPreconditionError) as caught:
            await main.build(ToolExecutionSettings(database_url=url), NoServices(), stack)  # type: ignore[arg-type]
    assert caught.value.reason is Reason.SCHEMA_OUTDATED
    assert caught.value.metadata["service"] == "tool_execution"


async def test_a_service_starts_on_its_schema(databases: Any) -> None:
    urls = await databases.of(MIGRATIONS)
    settings = ToolExecutionSettings(database_url=urls.service_url)
    async with AsyncExitStack() as stack:
        service = await main.build(settings, NoServices(), stack)  # type: ignore[arg-type]
    assert service.name == "tool_execution"


async def test_tools_belong_to_their_project(databases: Any) -> None:
    urls = await databases.of(MIGRATIONS)
    database = Database(urls.service_url)
    mine, other = new_id("project"), new_id("project")
    try:
        for project in (mine, other):
            async with database.transaction(project_id=project) as connection:
                row = {"project": project, "id": new_id("tool"), "name": "weather"}
                await connection.execute(INSERT, row)
        async with database.transaction(project_id=mine) as connection:
            rows = await connection.execute(
                sql("SELECT project_id, parameters::text AS parameters FROM tool_execution.tools")
            )
            assert list(map(tuple, rows)) == [(mine, '{"b": 1, "a": 2}')]
    finally:
        await database.close()
