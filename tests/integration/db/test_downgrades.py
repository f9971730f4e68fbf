"""Downgrades and upgrades of every service: a downgrade restores the earlier schema."""

from __future__ import annotations

import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import asyncpg
import pytest

from archival_stores import DIM, MODEL, new_passage, new_text
from block_records import NOW, begin, insert, make, write
from callers import new_project
from gateway_records import PROJECT, asking, new_run
from journal_records import record, result
from recall_conversations import Talk
from strata.agent_loop.domain.agent.agents import Agent
from strata.agent_loop.domain.model.chat import ToolCall
from strata.agent_loop.domain.run.journal import JournalKey, NestedRecord
from strata.agent_loop.store import PostgresAgentStore, PostgresJournal
from strata.archival.convert.archives import own_archive
from strata.archival.domain.history import Author, PassageChange
from strata.archival.domain.passages import ArchiveRef, Filter, Origin
from strata.archival.store import (
    PostgresArchiveStore,
    PostgresPassageHistory,
    PostgresPassageStore,
)
from strata.core_memory.domain.blocks import deleted_block
from strata.core_memory.store.blocks import PostgresBlockStore
from strata.gateway.runs.domain.runs import Fence, StoredEvent
from strata.gateway.runs.store.base import LeaseTerms
from strata.gateway.runs.store.runs import PostgresRunStore
from strata.protocol.errors import FailedPreconditionError, NotFoundError, Reason
from strata.shared.agent_types import AgentType
from strata.shared.db import Database
from strata.shared.idempotency.keys import RequestKey
from strata.shared.ids import new_id
from strata.shared.migrate import ServiceMigrations
from strata.shared.tool_catalogue import ToolEffect
from strata.standalone.compose.services import SERVICES
from strata.tool_execution.store import PostgresToolStore
from tool_records import NOTHING, custom

if TYPE_CHECKING:
    from conftest import Databases, ServiceDatabase

_SERVICES = {spec.name: spec.migrations for spec in SERVICES}
_STEPS = [
    (name, revision) for name, service in _SERVICES.items() for revision in service.revisions[:-1]
]

# The migrations after these revisions change rows only.
_ROWS_ONLY: set[tuple[str, str]] = set()
# All properties of a schema. Positions of columns are counted without dropped columns, and
# privileges are sorted, because neither difference is visible. The owner of each object is the
# service's owner.
_PARTS = {
    "tables": """
        SELECT c.relname, c.relkind, c.relpersistence, c.relrowsecurity, c.relforcerowsecurity,
               c.reloptions, pg_get_userbyid(c.relowner) AS owner, obj_description(c.oid),
               ARRAY(SELECT a::text FROM unnest(c.relacl) AS a ORDER BY 1) AS privileges
          FROM pg_class c WHERE c.relnamespace = $1::regnamespace AND c.relkind NOT IN ('i', 't')
         ORDER BY 1""",
    "columns": """
        SELECT c.relname, row_number() OVER (PARTITION BY c.oid ORDER BY a.attnum) AS place,
               a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
               a.attgenerated, a.attstorage, a.attcompression, a.attcollation::regcollation::text,
               pg_get_expr(d.adbin, d.adrelid), a.attstattarget, col_description(c.oid, a.attnum),
               ARRAY(SELECT p::text FROM unnest(a.attacl) AS p ORDER BY 1) AS privileges
          FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
          LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
         WHERE c.relnamespace = $1::regnamespace AND c.relkind NOT IN ('i', 't')
           AND a.attnum > 0 AND NOT a.attisdropped
         ORDER BY 1, 2""",
    "indexes": """
        SELECT indexname, indexdef FROM pg_indexes
         WHERE schemaname = $1::regnamespace::text ORDER BY 1""",
    "constraints": """
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid), convalidated
          FROM pg_constraint WHERE connamespace = $1::regnamespace ORDER BY 1, 2""",
    "policies": """
        SELECT tablename, policyname, permissive, roles::text, cmd, qual, with_check
          FROM pg_policies WHERE schemaname = $1::regnamespace::text ORDER BY 1, 2""",
    "triggers": """
        SELECT c.relname, t.tgname, pg_get_triggerdef(t.oid), t.tgenabled
          FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
         WHERE c.relnamespace = $1::regnamespace AND NOT t.tgisinternal ORDER BY 1, 2""",
    "functions": """
        SELECT pg_get_functiondef(p.oid), pg_get_userbyid(p.proowner),
               ARRAY(SELECT a::text FROM unnest(p.proacl) AS a ORDER BY 1) AS privileges
          FROM pg_proc p WHERE p.pronamespace = $1::regnamespace AND p.prokind <> 'a' ORDER BY 1""",
    "types": """
        SELECT t.typname, t.typtype, pg_get_userbyid(t.typowner),
               ARRAY(SELECT e.enumlabel::text FROM pg_enum e
                      WHERE e.enumtypid = t.oid ORDER BY e.enumsortorder) AS labels
          FROM pg_type t WHERE t.typnamespace = $1::regnamespace AND t.typcategory <> 'A'
         ORDER BY 1""",
    "statistics": """
        SELECT stxname, pg_get_statisticsobjdef(oid) FROM pg_statistic_ext
         WHERE stxnamespace = $1::regnamespace ORDER BY 1""",
    "text search": """
        SELECT cfgname FROM pg_ts_config WHERE cfgnamespace = $1::regnamespace ORDER BY 1""",
    "defaults": """
        SELECT pg_get_userbyid(defaclrole), defaclobjtype,
               ARRAY(SELECT a::text FROM unnest(defaclacl) AS a ORDER BY 1) AS privileges
          FROM pg_default_acl WHERE defaclnamespace = $1::regnamespace ORDER BY 1, 2""",
    "schema": """
        SELECT pg_get_userbyid(nspowner),
               ARRAY(SELECT a::text FROM unnest(nspacl) AS a ORDER BY 1) AS privileges
          FROM pg_namespace WHERE oid = $1::regnamespace""",
}


Schema: TypeAlias = dict[str, list[tuple[Any, ...]]]


async def schema_of(url: str, service: ServiceMigrations) -> Schema:
    """Returns all objects of a service's schema, by kind."""
    connection = await asyncpg.connect(url)
    try:
        return {
            part: [tuple(row) for row in await connection.fetch(query, service.schema)]
            for part, query in _PARTS.items()
        }
    finally:
        await connection.close()


@pytest.fixture(scope="module")
def until(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Returns a service's migrations as an earlier release had them, up to a revision."""
    folder = tmp_path_factory.mktemp("releases")
    made = set()

    def earlier(service: ServiceMigrations, revision: str) -> ServiceMigrations:
        package = f"until_{revision}_{service.service}"
        if package not in made:
            versions = folder / package / "versions"
            versions.mkdir(parents=True)
            (versions.parent / "__init__.py").write_text("")
            for source in service._versions.glob("*.py"):
                if source.name[:4] <= revision:
                    shutil.copy(source, versions)
            made.add(package)
        return ServiceMigrations(service.service, package, service.schema, service.untenanted)

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield earlier
    for package in made:
        sys.modules.pop(package, None)


@dataclass(frozen=True)
class Walk:
    """The schemas of one database that went through all revisions, up and down."""

    up: dict[str, Schema] = field(default_factory=dict)
    down: dict[str, Schema] = field(default_factory=dict)


@pytest.fixture(scope="module")
def walks(databases: Databases, until: Any) -> Callable[[str], Awaitable[Walk]]:
    """Returns the walk of a service, which is made once."""
    made: dict[str, Walk] = {}

    async def walk_of(name: str) -> Walk:
        if name not in made:
            made[name] = await _walk(databases, _SERVICES[name], until)
        return made[name]

    return walk_of


async def _walk(databases: Databases, service: ServiceMigrations, until: Any) -> Walk:
    url = databases.url(await databases.create())
    walk = Walk()

    for revision in service.revisions:
        await until(service, revision).upgrade(url, databases.passwords)
        assert await service.version(url) == revision
        walk.up[revision] = await schema_of(url, service)
    for revision in reversed(service.revisions[:-1]):
        await service.downgrade(url, revision)
        assert await service.version(url) == revision
        walk.down[revision] = await schema_of(url, service)
    return walk


def test_the_downgrade_tests_cover_every_service() -> None:
    assert set(_SERVICES) == {
        "core_memory",
        "recall",
        "archival",
        "tool_execution",
        "agent_loop",
        "gateway",
    }
    assert all(service.revisions[0] == "0001" for service in _SERVICES.values())


@pytest.mark.parametrize("name", _SERVICES)
async def test_a_full_downgrade_and_upgrade_results_in_a_fresh_schema(
    databases: Databases, name: str
) -> None:
    service = _SERVICES[name]
    url = databases.url(await databases.create())
    await service.upgrade(url, databases.passwords)
    fresh = await schema_of(url, service)
    assert len(fresh["tables"]) > 1
    assert fresh["policies"]

    await service.downgrade(url)

    assert await service.version(url) is None
    left = await schema_of(url, service)
    assert [row[0] for row in left["tables"]] == ["schema_version"]
    assert left["functions"] == left["triggers"] == left["policies"] == left["statistics"] == []
    assert {row[0] for row in left["types"]} == {"schema_version"}

    await service.upgrade(url, databases.passwords)
    assert await schema_of(url, service) == fresh


@pytest.mark.parametrize(("name", "revision"), _STEPS)
async def test_a_downgrade_restores_the_schema_of_the_revision(
    walks: Callable[[str], Awaitable[Walk]], name: str, revision: str
) -> None:
    walk = await walks(name)
    newest = walk.up[_SERVICES[name].head]
    assert (walk.up[revision] == newest) == ((name, revision) in _ROWS_ONLY)
    assert walk.down[revision] == walk.up[revision]


@pytest.fixture
def project() -> Iterator[str]:
    with new_project() as project_id:
        yield project_id


async def _there_and_back(urls: ServiceDatabase, service: ServiceMigrations) -> None:
    """Downgrades by one revision and upgrades; then goes down revision by revision and upgrades."""
    await service.downgrade(urls.admin_url, service.revisions[-2])
    await service.upgrade(urls.admin_url)
    for revision in reversed(service.revisions[:-1]):
        await service.downgrade(urls.admin_url, revision)
    await service.upgrade(urls.admin_url)


@asynccontextmanager
async def _opened(urls: ServiceDatabase) -> AsyncIterator[Database]:
    database = Database(urls.service_url)
    try:
        yield database
    finally:
        await database.close()


@asynccontextmanager
async def _opened_by_worker(urls: ServiceDatabase) -> AsyncIterator[Database]:
    database = Database(urls.worker_url)
    try:
        yield database
    finally:
        await database.close()


@pytest.mark.usefixtures("project")
async def test_existing_blocks_survive_a_downgrade_and_deleted_ones_do_not(
    databases: Databases,
) -> None:
    urls = await databases.of(_SERVICES["core_memory"])
    async with _opened(urls) as database:
        store = PostgresBlockStore(database)
        await begin(store, "agent-a")
        kept = await insert(store, make("kept", "Ada"), agent="agent-a")
        gone = await insert(store, make("gone", "Bob"), agent="agent-a", made_for="agent-a")
        await write(store, deleted_block(gone, NOW))

    await _there_and_back(urls, _SERVICES["core_memory"])

    async with _opened(urls) as database:
        store = PostgresBlockStore(database)
        assert [b.value for b in (await store.agent_memory("agent-a", "")).blocks] == ["Ada"]
        assert await store.block(gone.id) is None
        assert await store.block(kept.id) == replace(kept, agent_ids=("agent-a",))


@pytest.mark.usefixtures("project")
async def test_passages_survive_a_downgrade(databases: Databases) -> None:
    urls = await databases.of(_SERVICES["archival"])
    kept, changed, gone = new_passage("kept", ("b", "a")), new_passage("old"), new_passage("gone")
    labelled = replace(new_passage("labelled", ("a", "c")), origin=Origin(taint=("mcp",)))
    hidden = replace(new_passage("hidden", ("b",)), origin=Origin(taint=("web",)))
    author = Author("key", Origin(run_id=new_id("run")))
    async with _opened(urls) as database:
        await PostgresArchiveStore(database).prepare("agent-a")
        template = own_archive("agent-a", MODEL, DIM, NOW)
        stored = await PostgresPassageStore(database).insert(
            ArchiveRef(agent_id="agent-a"), [kept, changed, gone, labelled, hidden], template
        )
        history = PostgresPassageHistory(database)
        await history.update(changed.id, PassageChange(text=new_text("newer"), author=author), NOW)
        await history.delete(gone.id, author, NOW)
        await history.delete(hidden.id, author, NOW)

    await _there_and_back(urls, _SERVICES["archival"])

    async with _opened(urls) as database:
        within = Filter((stored[0].passage.archive_id,))
        page = await PostgresPassageStore(database).page(within, 9, None)
        assert {passage.text for passage in page} == {"kept", "newer", "labelled"}
        archives = PostgresArchiveStore(database)
        assert await archives.tags("", "agent-a") == {"a": 2, "b": 1, "c": 1}
        assert (await archives.stats("agent-a")).taint == {"c": ("mcp",)}
        again = PassageChange(text=new_text("newest"), author=author)
        history = PostgresPassageHistory(database)
        assert (await history.update(changed.id, again, NOW)).text == "newest"
        await history.delete(labelled.id, author, NOW)
        await history.delete(kept.id, author, NOW)
        await history.restore(hidden.id, 0, PassageChange(), NOW)
        assert (await archives.stats("agent-a")).taint == {"b": ("web",)}


@pytest.mark.usefixtures("project")
async def test_messages_survive_a_downgrade(databases: Databases) -> None:
    urls = await databases.of(_SERVICES["recall"])
    async with _opened(urls) as database:
        talk = await Talk(database).open()
        one = await talk.turn("one")
        two = await talk.turn("two", calls=1)
        await talk.compact(*two)
        fork = await talk.fork(two[0].id)
        before = [message.parts for message in await talk.window()]
        copied = [message.parts for message in await fork.window()]

    await _there_and_back(urls, _SERVICES["recall"])

    async with _opened(urls) as database:
        talk = Talk(database, talk.agent, talk.id)
        fork = Talk(database, talk.agent, fork.id)
        assert [message.parts for message in await talk.window()] == before
        assert [message.parts for message in await fork.window()] == copied
        assert (await talk.log.get(one[0].id)).parts == one[0].parts
        await talk.turn("three")


async def test_runs_and_events_survive_a_downgrade_and_approvals_do_not(
    databases: Databases,
) -> None:
    urls = await databases.of(_SERVICES["gateway"])
    terms = LeaseTerms("gateway-1", address="host-1:7600")
    approval_id, ending = asking()
    async with _opened(urls) as database, _opened_by_worker(urls) as worker:
        store = PostgresRunStore(database, worker, terms)
        accepted = await store.accept(new_run())
        waiting = await store.accept(new_run())
        assert accepted.dispatch is not None
        fence = Fence(PROJECT, accepted.run.id, 1, "gateway-1")
        await store.append(fence, [StoredEvent(1, b"one")])
        await store.finish(fence, ending, [StoredEvent(2, b"two")], take_next=False)
        before = await store.get(PROJECT, accepted.run.id)

    await _there_and_back(urls, _SERVICES["gateway"])

    async with _opened(urls) as database, _opened_by_worker(urls) as worker:
        store = PostgresRunStore(database, worker, terms)
        assert await store.get(PROJECT, accepted.run.id) == before
        page = await store.events(PROJECT, accepted.run.id, 0)
        assert [event.payload for event in page.events] == [b"one", b"two"]
        with pytest.raises(NotFoundError):
            await store.approval(PROJECT, approval_id)
        # No run waits for the answer any more.
        assert await store.claim(10) == [(PROJECT, waiting.run.id)]
        assert (await store.load(PROJECT, waiting.run.id)).payload == b"hello"


@pytest.mark.usefixtures("project")
async def test_agents_and_their_journals_survive_a_downgrade(databases: Databases) -> None:
    urls = await databases.of(_SERVICES["agent_loop"])
    agent = Agent(new_id("agent"), "Ada", AgentType.LETTA_V1, "Base.")
    key = JournalKey(agent.default_conversation_id, agent.id, new_id("run"), 1)
    written, nested = record("a", "b"), ToolCall("nested", "memory_insert", "{}")
    async with _opened(urls) as database:
        await PostgresAgentStore(database).insert(agent, RequestKey())
        before = await PostgresAgentStore(database).get(agent.id)
        journal = PostgresJournal(database)
        await journal.open_step(key, written)
        call = NestedRecord("a", nested)
        await journal.nest(key, 1, call, 2, ToolEffect.IDEMPOTENT)
        await journal.record(key, 1, [result("b")])
        await journal.mark_finishing(key, 600.0)

    await _there_and_back(urls, _SERVICES["agent_loop"])

    async with _opened(urls) as database:
        again = await PostgresAgentStore(database).get(agent.id)
        assert again.agent.name == before.agent.name
        journal, following = PostgresJournal(database), replace(key, attempt=2)
        assert not await journal.is_finishing(following)
        resumed = await journal.resume(following, 1)
        assert resumed is not None
        assert (resumed.reply, resumed.results["b"]) == (written.reply, result("b"))
        assert resumed.nested == ()


@pytest.mark.usefixtures("project")
async def test_tools_survive_a_downgrade(databases: Databases) -> None:
    urls = await databases.of(_SERVICES["tool_execution"])
    tool = custom(allowed_hosts=("a.example.com",))
    async with _opened(urls) as database:
        stored = await PostgresToolStore(database).upsert(tool, NOTHING)

    await _there_and_back(urls, _SERVICES["tool_execution"])

    async with _opened(urls) as database:
        store = PostgresToolStore(database)
        again = await store.get(tool_id=stored.id)
        assert again is not None
        assert again.own is not None
        assert stored.own is not None
        assert again.own.source_code == stored.own.source_code
        assert again.own.allowed_hosts == ()
        # Adding the same tool again restores the dropped columns.
        again = await store.upsert(tool, NOTHING)
        assert (again.id, again.version) == (stored.id, stored.version)


async def test_an_invalid_target_of_a_downgrade_is_refused(databases: Databases) -> None:
    service = _SERVICES["recall"]
    url = databases.url(await databases.create())
    with pytest.raises(FailedPreconditionError, match="never migrated"):
        await service.downgrade(url, "0001")
    await service.upgrade(url, databases.passwords)
    await service.downgrade(url, "0001")
    with pytest.raises(ValueError, match="no revision 9000"):
        await service.downgrade(url, "9000")
    with pytest.raises(FailedPreconditionError) as behind:
        await service.downgrade(url, "0002")
    assert behind.value.reason is Reason.SCHEMA_OUTDATED
    assert await service.version(url) == "0001"
