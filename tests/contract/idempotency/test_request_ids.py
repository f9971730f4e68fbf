"""The contract of request ids, on every table that recognises repeated requests."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import pytest

from callers import new_project
from gateway_records import PROJECT, TERMS, new_run, new_schedule
from strata.agent_loop.migrations import MIGRATIONS as AGENT_LOOP
from strata.agent_loop.store.request_table import REQUESTS as AGENT_LOOP_REQUESTS
from strata.archival.convert.archives import new_archive
from strata.archival.migrations import MIGRATIONS as ARCHIVAL
from strata.archival.store import PostgresArchiveStore
from strata.archival.store.receipts import RECEIPTS
from strata.core_memory.migrations import MIGRATIONS as CORE_MEMORY
from strata.core_memory.request_table import REQUESTS as CORE_MEMORY_REQUESTS
from strata.gateway.auth.domain import Hasher
from strata.gateway.auth.store import PostgresAdminStore
from strata.gateway.migrations import MIGRATIONS as GATEWAY
from strata.gateway.runs.store.base import LeaseTerms
from strata.gateway.runs.store.runs import PostgresRunStore
from strata.gateway.schedules.store import PostgresScheduleStore
from strata.gateway.webhooks.domain import NewWebhook
from strata.gateway.webhooks.store import PostgresWebhookStore
from strata.protocol.errors import AlreadyExistsError, Reason
from strata.shared.db import Database, DatabaseConnection
from strata.shared.idempotency.keys import RequestKey
from strata.shared.idempotency.request_table import (
    ClaimedRequestTable,
    RecordedRequestTable,
    run_once,
)
from strata.shared.ids import new_id
from strata.tool_execution.migrations import MIGRATIONS as TOOL_EXECUTION
from strata.tool_execution.store.request_table import REQUESTS as TOOL_EXECUTION_REQUESTS

_Table = ClaimedRequestTable | RecordedRequestTable
_TABLES: dict[str, tuple[Any, _Table, Callable[[str], Any]]] = {
    "agent_loop": (AGENT_LOOP, AGENT_LOOP_REQUESTS, lambda answer: {"answer": answer}),
    "archival": (ARCHIVAL, RECEIPTS, lambda answer: [answer]),
    "core_memory": (CORE_MEMORY, CORE_MEMORY_REQUESTS, str.encode),
    "tool_execution": (TOOL_EXECUTION, TOOL_EXECUTION_REQUESTS, str),
}


class Requests(Protocol):
    """Requests that have one effect per request id."""

    async def send(self, request_id: str, content: str) -> Any:
        """Sends a request and returns its answer."""
        ...

    async def count_effects(self) -> int:
        """Returns how many requests took effect."""
        ...


class _TableRequests:
    """Requests whose responses a `RequestTable` stores."""

    def __init__(
        self, database: Database, table: _Table, response_of: Callable[[str], Any]
    ) -> None:
        self._database = database
        self._table = table
        self._response_of = response_of
        self._effects = 0

    async def send(self, request_id: str, content: str) -> Any:
        request = RequestKey(request_id, hashlib.sha256(content.encode()).hexdigest())
        response = self._response_of(new_id("request"))
        is_new = False

        async def send_once(connection: DatabaseConnection) -> Any:
            nonlocal is_new
            table = self._table
            if isinstance(table, ClaimedRequestTable):
                first_response = await table.claim(connection, request)
            else:
                first_response = await table.find(connection, request)
            is_new = first_response is None
            if first_response is not None:
                return first_response
            await asyncio.sleep(0.01)
            if isinstance(table, ClaimedRequestTable):
                await table.answer(connection, request, response)
            else:
                await table.record(connection, request, response)
            return response

        result = await run_once(self._database, send_once)
        self._effects += is_new
        return result

    async def count_effects(self) -> int:
        return self._effects


class _CreatingRequests:
    """Requests that create objects, with which their ids are stored."""

    def __init__(self, create: Callable[[str, str], Awaitable[str]]) -> None:
        self._create = create
        self._ids: set[str] = set()

    async def send(self, request_id: str, content: str) -> str:
        created = await self._create(request_id, content)
        self._ids.add(created)
        return created

    async def count_effects(self) -> int:
        return len(self._ids)


def _gateway_requests(kind: str, database: Database, worker: Database) -> _CreatingRequests:
    runs = PostgresRunStore(database, worker, LeaseTerms("gateway-1"))
    schedules = PostgresScheduleStore(database, worker, runs, TERMS)
    webhooks = PostgresWebhookStore(database, worker, per_project=20)
    admin = PostgresAdminStore(database, worker, Hasher("pepper" * 8))
    organization = new_id("org")

    async def run(request_id: str, content: str) -> str:
        new = new_run(request_id=request_id, payload_hash=content.encode())
        return (await runs.accept(new)).run.id

    async def schedule(request_id: str, content: str) -> str:
        return (await schedules.create(PROJECT, new_schedule(content, request_id=request_id))).id

    async def webhook(request_id: str, content: str) -> str:
        url, digest = f"https://hook.example/{content}", content.encode()
        new = NewWebhook(new_id("webhook"), url, (), "", "", b"secret", request_id, digest)
        return (await webhooks.create(PROJECT, new))[0].id

    async def project(request_id: str, content: str) -> str:
        return (await admin.create_project(organization, content, request_id)).id

    return _CreatingRequests(
        {"run": run, "schedule": schedule, "webhook": webhook, "project": project}[kind]
    )


def _archive_requests(database: Database) -> _CreatingRequests:
    archives = PostgresArchiveStore(database)

    async def archive(request_id: str, content: str) -> str:
        new = new_archive(content, "model", 8, datetime.now(UTC))
        return (await archives.create(new, "", RequestKey(request_id, content))).id

    return _CreatingRequests(archive)


_SUBJECTS = [
    "archival archive",
    *(f"{service} table" for service in _TABLES),
    *(f"gateway {kind}" for kind in ("run", "schedule", "webhook", "project")),
]


@pytest.fixture(autouse=True)
def project() -> Iterator[str]:
    with new_project() as project_id:
        yield project_id


@pytest.fixture(params=_SUBJECTS)
async def requests(request: Any, databases: Any) -> AsyncIterator[Requests]:
    service, variant = request.param.split()
    migrations = GATEWAY if service == "gateway" else _TABLES[service][0]
    urls = await databases.of(migrations)
    database, worker = Database(urls.service_url, pool_size=8), Database(urls.worker_url)
    if service == "gateway":
        yield _gateway_requests(variant, database, worker)
    elif variant == "archive":
        yield _archive_requests(database)
    else:
        _, table, response_of = _TABLES[service]
        yield _TableRequests(database, table, response_of)
    await database.close()
    await worker.close()


async def test_same_request_has_one_effect_and_one_answer(requests: Requests) -> None:
    first = await requests.send("order-1", "a")
    assert await requests.send("order-1", "a") == first
    assert await requests.send("order-2", "b") != first
    assert await requests.count_effects() == 2


async def test_reusing_an_id_for_another_request_is_refused(requests: Requests) -> None:
    first = await requests.send("order-1", "a")
    with pytest.raises(AlreadyExistsError) as caught:
        await requests.send("order-1", "b")
    assert caught.value.reason is Reason.REQUEST_ID_REUSED
    assert caught.value.metadata == {"request_id": "order-1"}
    assert await requests.send("order-1", "a") == first
    assert await requests.count_effects() == 1


async def test_concurrent_repetitions_have_one_effect(requests: Requests) -> None:
    # Three attempts of `run_once` suffice: after the first commit every repetition finds it.
    answers = await asyncio.gather(*(requests.send("order-1", "a") for _ in range(6)))
    assert answers == [answers[0]] * 6
    assert await requests.count_effects() == 1


async def test_concurrent_requests_with_one_id_are_refused_but_one(requests: Requests) -> None:
    outcomes = await asyncio.gather(
        *(requests.send("order-1", content) for content in "abab"), return_exceptions=True
    )
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert [getattr(error, "reason", error) for error in errors] == [Reason.REQUEST_ID_REUSED] * 2
    first, again = (outcome for outcome in outcomes if not isinstance(outcome, BaseException))
    assert first == again
    assert await requests.count_effects() == 1


@pytest.mark.parametrize("service", sorted(_TABLES))
async def test_ids_of_projects_are_independent_and_expire(service: str, databases: Any) -> None:
    migrations, table, response_of = _TABLES[service]
    # The worker deletes requests of every project, so it must not run in the database of other
    # tests.
    urls = await databases.of(migrations)
    database, worker = Database(urls.service_url), Database(urls.worker_url)
    try:
        mine = _TableRequests(database, table, response_of)
        first = await mine.send("order-1", "a")
        with new_project():
            assert await mine.send("order-1", "b") != first
        assert await table.delete_expired(worker, timedelta(days=1)) == 0
        assert await table.delete_expired(worker, timedelta(0)) == 2
        assert await mine.send("order-1", "c") != first
    finally:
        await database.close()
        await worker.close()
