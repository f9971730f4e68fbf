"""The contract of `ToolStore` and `SecretStore`, on PostgreSQL."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from callers import as_project
from contract.tool_execution.conftest import SCOPES
from strata.protocol.errors import AlreadyExistsError, NotFoundError, PermissionDeniedError, Reason
from strata.shared import context
from strata.shared.db import Database, sql
from strata.shared.idempotency.keys import RequestKey
from strata.shared.scopes import DEFAULT_SCOPES
from strata.tool_execution.domain.registry import StoredVector
from strata.tool_execution.domain.tools import Effect, Tool, ToolType
from strata.tool_execution.store import PostgresSecretStore, PostgresToolStore
from strata.tool_execution.store.request_table import REQUESTS
from tool_records import NOTHING, custom


@pytest.fixture
def store(database: Database) -> PostgresToolStore:
    return PostgresToolStore(database)


@pytest.fixture
def secrets(database: Database) -> PostgresSecretStore:
    return PostgresSecretStore(database)


def content(tool: Tool) -> Tool:
    assert tool.own is not None
    own = replace(tool.own, id="", create_time=None, update_time=None)
    return replace(tool, own=own)


async def test_a_stored_tool_is_returned_unchanged(store: PostgresToolStore) -> None:
    tool = custom(
        requires_approval=True,
        pip_requirements=("a>=1",),
        secret_names=("KEY",),
        allowed_hosts=("a.example.com", "*.example.org"),
    )
    stored = await store.upsert(tool, NOTHING)
    assert stored.own is not None
    assert stored.own.create_time == stored.own.update_time is not None
    assert content(stored) == content(tool)
    assert list(stored.parameters["properties"]) == ["town", "day"]
    assert stored.version == tool.version
    assert await store.get(tool_id=stored.id) == await store.get(name="weather") == stored
    assert await store.named(["weather", "other"]) == {"weather": stored}


async def test_the_same_content_changes_nothing(store: PostgresToolStore) -> None:
    first = await store.upsert(custom(), NOTHING)
    again = await store.upsert(custom(), NOTHING)
    assert again == first


async def test_other_content_is_another_version_of_the_same_tool(store: PostgresToolStore) -> None:
    first = await store.upsert(custom(), NOTHING)
    changed = await store.upsert(replace(custom(), description="Better."), NOTHING)
    assert changed.id == first.id
    assert changed.version != first.version
    assert first.own is not None
    assert changed.own is not None
    assert changed.own.create_time == first.own.create_time
    assert changed.own.update_time != first.own.update_time
    assert await store.get(name="weather") == changed


@pytest.mark.parametrize("by_earlier_release", [False, True])
async def test_a_deleted_tool_takes_its_source_in_stored_answers(
    by_earlier_release: bool, store: PostgresToolStore, database: Database
) -> None:
    request = RequestKey("create", "digest")
    stored, other = await store.upsert(custom(), request), RequestKey("other", "digest")
    await store.upsert(custom("other"), other)
    if by_earlier_release:
        async with database.transaction() as connection:
            await connection.execute(sql("UPDATE tool_execution.requests SET tool_id = '*'"))
    assert await store.delete(stored.id)
    async with database.transaction(read_only=True) as connection:
        rows = await connection.execute(sql("SELECT response FROM tool_execution.requests"))
        texts = [row.response for row in rows]
    assert sorted("def weather" in text for text in texts) == [False, False]
    assert sorted("def other" in text for text in texts) == [False, True]
    # The tool is not created again.
    with pytest.raises(NotFoundError) as caught:
        await store.upsert(custom(), request)
    assert caught.value.reason is Reason.TOOL_NOT_FOUND
    assert (await store.upsert(custom("other"), other)).name == "other"


@pytest.mark.parametrize(
    "change",
    [
        {"description": "x"},
        {"parameters": {"type": "object", "properties": {}}},
        {"effect": Effect.IDEMPOTENT},
        {"parallel": False},
        {"return_char_limit": 901},
        {"tags": ("sky",)},
    ],
)
def test_changing_any_field_makes_another_version(change: dict[str, Any]) -> None:
    assert replace(custom(), **change).version != custom().version


@pytest.mark.parametrize(
    "own",
    [
        {"requires_approval": True},
        {"pip_requirements": ("a",)},
        {"secret_names": ("A",)},
        {"allowed_hosts": ("a.b",)},
    ],
)
def test_changing_any_field_of_a_custom_tool_makes_another_version(own: dict[str, Any]) -> None:
    assert custom(**own).version != custom().version


async def test_a_name_keeps_its_type(store: PostgresToolStore) -> None:
    await store.upsert(custom(), NOTHING)
    with pytest.raises(AlreadyExistsError) as caught:
        await store.upsert(replace(custom(), type=ToolType.CLIENT), RequestKey("r", "d"))
    assert caught.value.reason is Reason.NAME_TAKEN
    # A failed request is not recorded as done.
    assert (await store.upsert(custom("other"), RequestKey("r", "d"))).name == "other"


async def test_a_repeated_request_gets_its_first_answer(store: PostgresToolStore) -> None:
    request = RequestKey("request-1", "digest")
    first = await store.upsert(custom(), request)
    newer = await store.upsert(replace(custom(), description="Newer."), NOTHING)
    assert await store.upsert(custom(), request) == first
    assert await store.get(name="weather") == newer
    with pytest.raises(AlreadyExistsError) as caught:
        await store.upsert(custom(), RequestKey("request-1", "other"))
    assert caught.value.reason is Reason.REQUEST_ID_REUSED


async def test_concurrent_requests_with_one_id_create_one_tool(store: PostgresToolStore) -> None:
    request = RequestKey("request-1", "digest")
    stored = await asyncio.gather(*(store.upsert(custom(), request) for _ in range(8)))
    assert len({tool.id for tool in stored}) == 1
    assert all(tool == stored[0] for tool in stored)


async def test_tools_are_paged_by_name_and_type(store: PostgresToolStore) -> None:
    for name in ("b", "a", "c"):
        await store.upsert(custom(name), NOTHING)
    await store.upsert(replace(custom("d"), type=ToolType.CLIENT), NOTHING)
    assert [tool.name for tool in await store.page((), "", 3)] == ["a", "b", "c"]
    assert [tool.name for tool in await store.page((), "b", 9)] == ["c", "d"]
    assert [tool.name for tool in await store.page({ToolType.CLIENT}, "", 9)] == ["d"]


async def test_a_deleted_tool_cannot_be_read(store: PostgresToolStore) -> None:
    tool = await store.upsert(custom(), NOTHING)
    assert await store.delete(tool.id) is True
    assert await store.delete(tool.id) is False
    assert await store.get(tool_id=tool.id) is None
    assert await store.named(["weather"]) == {}


async def test_a_tool_is_run_with_the_secrets_that_it_names(
    store: PostgresToolStore, secrets: PostgresSecretStore
) -> None:
    await secrets.put("KEY", b"one")
    await secrets.put("KEY", b"\x00two" * 60)
    await secrets.put("OTHER", b"three")
    await store.upsert(custom(secret_names=("KEY", "LATER")), NOTHING)
    runnable = await store.runnable(["weather", "none"])
    assert set(runnable.tools) == {"weather"}
    assert runnable.sealed == {"KEY": b"\x00two" * 60}
    await secrets.delete("KEY")
    await secrets.delete("KEY")
    assert (await store.runnable(["weather"])).sealed == {}


async def test_without_the_secrets_scope_a_tool_with_secrets_cannot_be_changed(
    store: PostgresToolStore, project: str
) -> None:
    tool = await store.upsert(custom(secret_names=("KEY",)), NOTHING)
    lesser = as_project(project, DEFAULT_SCOPES)
    with context.use(lesser):
        for changed in (custom(), custom(secret_names=("KEY",), allowed_hosts=("a.example",))):
            with pytest.raises(PermissionDeniedError):
                await store.upsert(changed, NOTHING)
        assert await store.upsert(custom(secret_names=("KEY",)), NOTHING) == tool
        with pytest.raises(PermissionDeniedError):
            await store.delete(tool.id)
    assert await store.get(tool_id=tool.id) == tool


async def test_vectors_are_stored_without_a_new_version(store: PostgresToolStore) -> None:
    tool = await store.upsert(custom(), NOTHING)
    vector = StoredVector(tool.id, "hash", b"\x00\x01")
    [(stored, none)] = await store.searchable(10)
    assert none is None
    assert stored.own is not None
    assert stored.own.source_code == ""
    await store.keep_vectors([vector])
    [(_, kept)] = await store.searchable(10)
    assert kept == vector
    assert await store.get(tool_id=tool.id) == tool


async def test_tools_and_secrets_of_another_project_can_be_neither_read_nor_changed(
    store: PostgresToolStore, secrets: PostgresSecretStore
) -> None:
    mine = await store.upsert(custom(secret_names=("KEY",)), RequestKey("r", "d"))
    await secrets.put("KEY", b"mine")
    with context.use(as_project(scopes=SCOPES)):
        assert await store.get(tool_id=mine.id) is None
        assert await store.page((), "", 9) == []
        assert (await store.runnable(["weather"])).tools == {}
        assert await store.delete(mine.id) is False
        await store.keep_vectors([StoredVector(mine.id, "h", b"x")])
        theirs = await store.upsert(custom(secret_names=("KEY",)), RequestKey("r", "d"))
        assert theirs.id != mine.id
        assert (await store.runnable(["weather"])).sealed == {}
        await secrets.delete("KEY")
    assert (await store.runnable(["weather"])).sealed == {"KEY": b"mine"}
    assert (await store.searchable(9))[0][1] is None


async def test_old_requests_are_deleted_and_the_worker_reads_no_secret(
    store: PostgresToolStore, worker: Database
) -> None:
    await store.upsert(custom(), RequestKey("r", "d"))
    assert await store.keep_choice("run-1", ["files__read"]) == ["files__read"]
    assert await store.keep_choice("run-1", ["files__write"]) == ["files__read"]
    assert await REQUESTS.delete_expired(worker, timedelta(days=1)) == 0
    # The stored choice of tools of a run is deleted as well.
    assert await REQUESTS.delete_expired(worker, timedelta(0)) == 2
    for table in ("secrets", "tools"):
        with pytest.raises(Exception, match="permission denied"):
            async with worker.system_transaction() as connection:
                await connection.execute(sql(f"SELECT 1 FROM tool_execution.{table}"))
    assert (await store.upsert(custom("other"), RequestKey("r", "e"))).name == "other"
    assert await store.keep_choice("run-1", ["files__write"]) == ["files__write"]
