"""Writes a backup of a data folder, whether a Strata runs on it or not."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from strata.protocol.errors import FailedPreconditionError, Reason
from strata.shared.release import release
from strata.standalone.backup.dumps import dump, snapshot
from strata.standalone.backup.manifest import (
    DUMP,
    FOLDERS,
    PARTIAL,
    SECRETS,
    FileEntry,
    Manifest,
    entry_of,
    verify_files,
)
from strata.standalone.compose.storage import DATABASE
from strata.standalone.data_folder import DataFolder
from strata.standalone.files import partial_folder, publish_folder, reported_errors
from strata.standalone.postgres import EmbeddedPostgres


async def write_backup(folder: DataFolder, target: Path) -> Manifest:
    """Writes a backup, and checks the hashes of the written files.

    The dump is one snapshot of all services, even while turns run. Other files are copied
    unchanged. Everything that can be rebuilt is left out: the vector index, packages of tools,
    logs.

    Args:
        folder: The data folder; not open here.
        target: The folder to create.

    Returns:
        What the backup holds.

    Raises:
        FailedPreconditionError: There is no data, the target exists, another process writes it,
            or the folder is just being started.
        UnavailableError: The database cannot be dumped, or a file cannot be read or written.
        DataLossError: The written data differs from the data that was read.
    """
    with reported_errors("The backup was not written"):
        _check(folder, target)
        return await _write(folder, target, target.with_name(target.name + PARTIAL))


async def _write(folder: DataFolder, target: Path, partial: Path) -> Manifest:
    with partial_folder(partial):
        async with open_database(folder) as url, snapshot(url) as moment:
            await dump(url, moment, partial / DUMP, folder.postgres)
            copied = await asyncio.to_thread(_copy_folders, folder.path, partial)
        manifest = Manifest(
            create_time=datetime.now(UTC).isoformat(timespec="seconds"),
            release=release(),
            revisions=moment.revisions,
            rows=moment.rows,
            files={DUMP: await asyncio.to_thread(entry_of, partial / DUMP), **copied},
        )
        manifest.write(partial)
        await asyncio.to_thread(verify_files, partial)
        publish_folder(partial, target)
    return manifest


@asynccontextmanager
async def open_database(folder: DataFolder) -> AsyncIterator[str]:
    """Yields the URL of a data folder's database, which is started if it does not run.

    Raises:
        FailedPreconditionError: Another process is just starting or stopping on the folder.
        UnavailableError: PostgreSQL does not start.
    """
    engine = EmbeddedPostgres(folder.postgres)
    if folder.running() is not None:
        yield engine.url_of_running(database=DATABASE)
        return
    folder.open()
    try:
        await engine.start()
        try:
            yield engine.url(database=DATABASE)
        finally:
            await engine.stop()
    finally:
        folder.close()


def _check(folder: DataFolder, target: Path) -> None:
    if not (folder.postgres / "data" / "PG_VERSION").exists():
        raise FailedPreconditionError(
            f"There is nothing to back up: {folder.path} is not a data folder of Strata.",
            reason=Reason.IN_USE,
            metadata={"folder": str(folder.path)},
        )
    if target.exists():
        raise FailedPreconditionError(
            f"{target} exists. A backup is a new folder, and nothing is overwritten.",
            reason=Reason.IN_USE,
            metadata={"folder": str(target)},
        )


def _copy_folders(source: Path, target: Path) -> dict[str, FileEntry]:
    """Copies the files outside of the database; returns their entries at the source."""
    entries = {}
    for name in FOLDERS:
        if not (source / name).is_dir():
            continue
        (target / name).mkdir(mode=0o700)
        for path in sorted((source / name).iterdir()):
            if path.is_file() and _is_used(path):
                copy_file(path, target / name / path.name)
                entries[f"{name}/{path.name}"] = entry_of(path)
    return entries


def _is_used(path: Path) -> bool:
    """Returns whether a server reads a file: it refuses links to prompts outside of the folder."""
    folder = path.parent
    return folder.name == SECRETS or path.resolve().is_relative_to(folder.resolve())


def copy_file(source: Path, target: Path) -> None:
    """Copies a file with its permissions, and waits until it is on the disk."""
    mode = source.stat().st_mode & 0o777
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with source.open("rb") as reading, os.fdopen(descriptor, "wb") as writing:
        shutil.copyfileobj(reading, writing)
        writing.flush()
        os.fsync(writing.fileno())
