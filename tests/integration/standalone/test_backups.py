"""Backups of a stopped database, and checks of these backups."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest

from strata.protocol.errors import DataLossError, FailedPreconditionError, UnavailableError
from strata.shared.migrate.service import VERSION_TABLE
from strata.standalone.backup.dumps import snapshot
from strata.standalone.backup.restoring import check_backup
from strata.standalone.backup.writing import write_backup
from strata.standalone.compose.services import SERVICES
from strata.standalone.compose.storage import DATABASE, create_database
from strata.standalone.data_folder import DataFolder
from strata.standalone.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from conftest import Databases

ROWS = 3


@pytest.fixture
def folder(engine_folder: Path) -> Iterator[Path]:
    made = engine_folder / "stopped"
    made.mkdir(mode=0o711)
    yield made
    shutil.rmtree(made)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def make_data(folder: DataFolder) -> None:
    """Creates a stopped database with one table, and the revision of each schema."""
    folder.open()
    engine = EmbeddedPostgres(folder.postgres)
    await engine.start()
    await create_database(engine)
    connection = await asyncpg.connect(engine.url(database=DATABASE))
    for spec in SERVICES:
        schema, head = spec.migrations.schema, spec.migrations.head
        await connection.execute(f"CREATE SCHEMA {schema}")
        await connection.execute(
            f"CREATE TABLE {schema}.{VERSION_TABLE} AS SELECT '{head}' AS version_num"
        )
    await connection.execute("CREATE TABLE recall.messages (text text)")
    owner = SERVICES[1].migrations.roles.owner
    await connection.execute(f"CREATE ROLE {owner}; ALTER TABLE recall.messages OWNER TO {owner}")
    await connection.executemany("INSERT INTO recall.messages VALUES ($1)", [("a",)] * ROWS)
    await connection.close()
    await engine.stop()
    (folder.prompts).mkdir()
    (folder.prompts / "mine.txt").write_text("Be brief.")
    folder.close()


async def test_links_to_files_that_a_server_reads_are_followed(folder: Path) -> None:
    data = DataFolder(folder / "data")
    await make_data(data)
    (folder / "elsewhere").write_text("of another disk")
    (data.secrets / "master-key").symlink_to(folder / "elsewhere")
    (data.prompts / "linked.txt").symlink_to("mine.txt")
    (data.prompts / "refused.txt").symlink_to(folder / "elsewhere")
    written = await write_backup(data, folder / "backup")
    assert (folder / "backup" / "secrets" / "master-key").read_text() == "of another disk"
    assert (folder / "backup" / "prompts" / "linked.txt").read_text() == "Be brief."
    assert {name for name in written.files if name.startswith("prompts/")} == {
        "prompts/mine.txt",
        "prompts/linked.txt",
    }


async def test_a_backup_of_a_stopped_database_is_checked_by_loading_it(folder: Path) -> None:
    data = DataFolder(folder / "data")
    await make_data(data)
    written = await write_backup(data, folder / "backup")
    assert written.rows["recall.messages"] == ROWS
    assert written.revisions == {s.migrations.schema: s.migrations.head for s in SERVICES}
    assert "prompts/mine.txt" in written.files
    assert data.holder() is None

    # The hashes match, but rows are missing.
    wrong = {**written.rows, "recall.messages": ROWS + 1}
    replace(written, rows=wrong).write(folder / "backup")
    with pytest.raises(DataLossError, match=r"recall\.messages has 3 of 4 rows"):
        await check_backup(folder / "backup", folder)
    written.write(folder / "backup")
    assert await check_backup(folder / "backup", folder) == written
    assert names(folder) == {"data", "backup"}


async def test_an_error_of_the_database_is_reported(databases: Databases) -> None:
    with pytest.raises(UnavailableError, match=r"cannot be read: .*no_such_database"):
        async with snapshot(databases.url("no_such_database")):
            pass


async def test_a_folder_that_is_being_started_is_not_backed_up(folder: Path) -> None:
    data = DataFolder(folder / "data")
    (data.postgres / "data").mkdir(parents=True)
    (data.postgres / "data" / "PG_VERSION").write_text("18")
    data.open()
    try:
        with pytest.raises(FailedPreconditionError, match="is in use by process"):
            await write_backup(DataFolder(data.path), folder / "backup")
    finally:
        data.close()
    assert not (folder / "backup").exists()
