"""Engines for the whole session, and databases made from templates.

PostgreSQL and the vector engine are the real ones, started once, on first use. The shared
PostgreSQL runs without fsync and without autovacuum: tests of durability start one of their own.
"""

from __future__ import annotations

import fcntl
import gc
import itertools
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from unittest.mock import patch

import asyncpg
import pytest
import pytest_asyncio
from hypothesis import settings

import ast_parse_lock
import shared_certificates
import shared_models
from collection_order import in_usual_order, rotate_collection
from prepared_folder import copy_prepared_folder, make_prepared_folder
from scheduling import FixtureScheduling
from shapes import mark_other_shapes
from strata.shared.db import Database
from strata.shared.gc_freeze import freeze_long_lived
from strata.shared.migrate import RolePasswords, ServiceMigrations, passwords
from strata.shared.partitions import DEFAULT_PARTITION
from strata.standalone.postgres import SUPERUSER, EmbeddedPostgres
from strata.standalone.vectors import EmbeddedVectors

if TYPE_CHECKING:
    from whole_system import System

# A handler that an earlier test left with a closed stream must not write into the output of another
# test: logging would print the failure to the current standard error.
logging.raiseExceptions = False

# The files of all databases and of the vector engine of one process take about 2 GB.
_PLENTY_BYTES = 12 << 30
_SHARED_MEMORY = Path("/dev/shm")
_FOLDER = "strata-"

T = TypeVar("T")

# Python's default, 700 new objects, leads to so many full collections that they take 3 to 5 % of
# the CPU time of tests with whole services.
gc.set_threshold(5_000)

ast_parse_lock.install()
shared_certificates.install()
shared_models.install()

# The duration of an example depends on the machine more than on the code. `make test-slow` runs the
# property tests with the profile "thorough".
settings.register_profile("strata", deadline=None, max_examples=50)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile("strata")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FixtureScheduling | None:
    """Gives the files of a folder that share a fixture to one process after another."""
    return FixtureScheduling(config, log) if config.option.dist == "loadfile" else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Has the test processes import the modules in different orders.

    No garbage is collected meanwhile: modules and tests stay, and there is little else.
    """
    rotate_collection(session.config)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts the tests, and leaves most of them one shape of Strata; the others are slow tests."""
    items[:] = in_usual_order(items)
    mark_other_shapes(items)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Excludes modules and tests from garbage collections, which would otherwise traverse them."""
    freeze_long_lived()


@dataclass(frozen=True)
class ServiceDatabase:
    """A fresh, migrated database, by the roles that use it."""

    admin_url: str
    service_url: str
    worker_url: str


def _few_hashes() -> Any:
    """Has verifiers of passwords made with 4 hashes instead of 4096.

    The driver would need a third of its CPU time for a connection to compute them. The passwords
    are random.
    """
    return patch.object(passwords, "_ITERATIONS", 4)


class Databases:
    """Makes databases in the session's PostgreSQL; each is new and used by one test or module."""

    def __init__(self, postgres: EmbeddedPostgres) -> None:
        self._postgres = postgres
        self._numbers = itertools.count(1)
        self._templates: dict[str, str] = {}
        self._prepared: dict[Callable[[ServiceDatabase], Awaitable[Any]], tuple[str, Any]] = {}
        self.passwords = RolePasswords(secrets.token_urlsafe(16), secrets.token_urlsafe(16))

    async def create(self, template: str = "template0") -> str:
        """Returns the name of a new database, a copy of `template`."""
        name = f"test_{next(self._numbers)}"
        connection = await asyncpg.connect(self._postgres.url())
        try:
            await connection.execute(
                f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY file_copy'
            )
        finally:
            await connection.close()
        return name

    def url(self, database: str) -> str:
        """Returns the URL of a database for the superuser."""
        return self._postgres.url(database=database)

    async def of(
        self, service: ServiceMigrations, partition: str = DEFAULT_PARTITION
    ) -> ServiceDatabase:
        """Returns a new database with the service's schema; the migration itself runs once.

        All databases that one `Databases` makes for a service are in the same partition.
        """
        if service.package not in self._templates:
            template = await self.create()
            with _few_hashes():
                await service.upgrade(self.url(template), self.passwords, partition)
            self._templates[service.package] = template
        return await self._copy(self._templates[service.package], service)

    async def prepared(
        self,
        service: ServiceMigrations,
        prepare: Callable[[ServiceDatabase], Awaitable[T]],
    ) -> tuple[ServiceDatabase, T]:
        """Returns a new database with the rows that `prepare` stores, and what `prepare` returns.

        `prepare` runs once; it must leave no connection to the database open.
        """
        if prepare not in self._prepared:
            template = await self.of(service)
            self._prepared[prepare] = _name(template), await prepare(template)
        name, result = self._prepared[prepare]
        return await self._copy(name, service), result

    async def _copy(self, template: str, service: ServiceMigrations) -> ServiceDatabase:
        name = await self.create(template)
        return ServiceDatabase(
            admin_url=self.url(name),
            service_url=self._postgres.url(
                user=service.roles.service, password=self.passwords.service, database=name
            ),
            worker_url=self._postgres.url(
                user=service.roles.worker, password=self.passwords.worker, database=name
            ),
        )

    async def drop(self, database: ServiceDatabase) -> None:
        """Drops a database, for tests that make many: each takes some megabytes."""
        name = _name(database)
        connection = await asyncpg.connect(self._postgres.url())
        try:
            await connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
        finally:
            await connection.close()


def _name(database: ServiceDatabase) -> str:
    return database.admin_url.rpartition("/")[2]


def _make_reachable(parent: Path | None = None) -> Path:
    # PostgreSQL runs as another user when the tests run as root, and pytest's folders are not
    # readable for that user.
    folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-", dir=parent))
    folder.chmod(0o711)
    return folder


@pytest.fixture(scope="session")
def session_folder() -> Iterator[Path]:
    """A folder for the session that other users may pass through."""
    folder = _make_reachable()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def _remove_leftovers() -> None:
    """Removes folders of sessions that were killed: each holds hundreds of megabytes of memory."""
    for folder in _SHARED_MEMORY.glob(f"{_FOLDER}*"):
        pid = folder.name.removeprefix(_FOLDER).partition("-")[0]
        if pid.isdecimal() and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _memory() -> Path | None:
    """Where files live in memory, if there is plenty of it."""
    try:
        state = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return None
    return _SHARED_MEMORY if state.f_bavail * state.f_frsize >= _PLENTY_BYTES else None


@pytest.fixture(scope="session")
def engine_folder(pytestconfig: pytest.Config) -> Path:
    """Where the session's engines keep their files.

    The databases of all tests have a hundred thousand files. On a disk their removal can take
    longer than the time limit of a test, so no test does it.
    """
    _remove_leftovers()
    folder = _make_reachable(_memory())
    pytestconfig.add_cleanup(partial(shutil.rmtree, folder, ignore_errors=True))
    return folder


@pytest.fixture(scope="session")
def prepared_folder(
    request: pytest.FixtureRequest, session_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A data folder as a first start leaves it, for `copy_prepared_folder`.

    The first test process that needs it makes it for all.
    """
    own = tmp_path_factory.getbasetemp()
    common = own.parent if hasattr(request.config, "workerinput") else own
    folder = common / "prepared"
    with (common / "prepared.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            # The database's user cannot enter pytest's folders.
            make_prepared_folder(session_folder / "prepared")
            copy_prepared_folder(session_folder / "prepared", common / "copying")
            (common / "copying").rename(folder)
    return folder


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A temporary folder that other users may pass through, unlike `tmp_path`."""
    folder = _make_reachable()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def open_folder_of_module() -> Iterator[Path]:
    """A folder like `open_folder`, for a module whose tests look at one and the same data."""
    folder = _make_reachable()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def postgres(engine_folder: Path) -> AsyncIterator[EmbeddedPostgres]:
    """The session's PostgreSQL."""
    server = EmbeddedPostgres(
        engine_folder / "postgres",
        settings={
            "fsync": "off",
            "synchronous_commit": "off",
            "full_page_writes": "off",
            "wal_level": "minimal",
            "max_wal_senders": "0",
            # Autovacuum would visit hundreds of databases, delay copies of templates, and make
            # plans depend on whether statistics exist yet. A test of plans analyzes its tables.
            "autovacuum": "off",
        },
    )
    await server.start()
    await _hash_password_quickly(server)
    yield server
    await server.stop()


async def _hash_password_quickly(server: EmbeddedPostgres) -> None:
    """Spares the driver 1 ms of CPU time for each connection of the superuser."""
    password = (server.folder / "superuser.password").read_text().strip()
    with _few_hashes():
        verifier = passwords.scram_verifier(password)
    connection = await asyncpg.connect(server.url())
    try:
        await connection.execute(f"ALTER ROLE {SUPERUSER} PASSWORD '{verifier}'")
    finally:
        await connection.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def databases(postgres: EmbeddedPostgres) -> Databases:
    """Makes databases in the session's PostgreSQL."""
    return Databases(postgres)


@pytest.fixture
def pool_size() -> int:
    """How many connections `database` may have."""
    return 10


@pytest.fixture
async def database(urls: ServiceDatabase, pool_size: int) -> AsyncIterator[Database]:
    """The database of `urls`, as the service uses it; a folder of tests defines its `urls`."""
    opened = Database(urls.service_url, pool_size=pool_size)
    yield opened
    await opened.close()


@pytest.fixture
async def worker(urls: ServiceDatabase) -> AsyncIterator[Database]:
    """The same database, as the background work of the service uses it."""
    opened = Database(urls.worker_url)
    yield opened
    await opened.close()


@pytest_asyncio.fixture(loop_scope="session")
async def system(running_system: System) -> AsyncIterator[System]:
    """The system of a folder of tests; the model must get nothing that a provider refuses."""
    running_system.model.reset()
    yield running_system
    await running_system.end_open_runs()
    assert running_system.model.violations == []


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def vectors(engine_folder: Path) -> AsyncIterator[EmbeddedVectors]:
    """The session's vector engine."""
    engine = EmbeddedVectors(engine_folder / "vectors")
    await engine.start()
    yield engine
    await engine.stop()
