"""Makes a data folder from a backup."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from strata.protocol.errors import DataLossError, FailedPreconditionError, Reason
from strata.standalone.backup.dumps import count_rows, load
from strata.standalone.backup.manifest import DUMP, FOLDERS, PARTIAL, Manifest, verify_files
from strata.standalone.backup.writing import copy_file
from strata.standalone.compose.services import SERVICES
from strata.standalone.compose.storage import DATABASE, create_database
from strata.standalone.data_folder import DataFolder
from strata.standalone.files import partial_folder, publish_folder, reported_errors
from strata.standalone.postgres import EmbeddedPostgres


async def restore_backup(source: Path, target: Path) -> Manifest:
    """Makes a data folder from a backup, after checking it.

    The folder is built under another name and gets its own at the end, so an interrupted restore
    never looks complete. The vector index is built by the first `strata up` on it.

    Args:
        source: The backup.
        target: The data folder; missing or empty.

    Returns:
        What the backup holds.

    Raises:
        FailedPreconditionError: The target is not empty, another process writes it, or the backup
            is of a newer release.
        DataLossError: The backup is damaged or not complete.
        UnavailableError: The database cannot be loaded, or a file cannot be read or written.
    """
    with reported_errors("The backup was not restored"):
        _check_empty(target)
        manifest = await _verified(source)
        return await _restore(source, manifest, target, target.with_name(target.name + PARTIAL))


async def _verified(source: Path) -> Manifest:
    manifest = await asyncio.to_thread(verify_files, source)
    _check_revisions(manifest)
    return manifest


async def _restore(source: Path, manifest: Manifest, target: Path, partial: Path) -> Manifest:
    with partial_folder(partial):
        await _build(source, manifest, partial)
        publish_folder(partial, target)
    return manifest


async def check_backup(source: Path, workplace: Path | None = None) -> Manifest:
    """Checks a backup: the hash of each file, and that its database can be loaded completely.

    Args:
        source: The backup.
        workplace: Where the database is loaded temporarily; by default among temporary files.

    Returns:
        What the backup holds.

    Raises: as `restore_backup`, except for the target.
    """
    with reported_errors("The backup was not checked"), _temporary_folder(workplace) as temporary:
        manifest = await _verified(source)
        await _build(source, manifest, temporary / "data")
        return manifest


@contextmanager
def _temporary_folder(workplace: Path | None) -> Iterator[Path]:
    with TemporaryDirectory(prefix="strata-check-", dir=workplace) as temporary:
        path = Path(temporary)
        # The database's user, another one if this process is root, must pass through.
        path.chmod(0o711)
        yield path


async def _build(source: Path, manifest: Manifest, path: Path) -> None:
    """Makes a data folder at a path that does not exist, or is an empty folder."""
    folder = DataFolder(path)
    folder.open()
    try:
        await asyncio.to_thread(_copy_files, source, manifest, path)
        async with AsyncExitStack() as stack:
            engine = EmbeddedPostgres(folder.postgres)
            await engine.start()
            stack.push_async_callback(engine.stop)
            await create_database(engine)
            url = engine.url(database=DATABASE)
            for spec in SERVICES:
                passwords = folder.role_passwords(spec.migrations.service)
                await spec.migrations.create_roles(url, passwords)
            await load(url, source / DUMP, folder.postgres)
            _compare(manifest.rows, await count_rows(url))
    finally:
        folder.close()


def _check_empty(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FailedPreconditionError(
            f"{target} is not empty. A backup is restored into a new folder, and nothing is"
            " overwritten.",
            reason=Reason.IN_USE,
            metadata={"folder": str(target)},
        )
    if target.is_symlink() or target.is_mount():
        # The restored folder replaces it, which the operating system would refuse at the end.
        raise FailedPreconditionError(
            f"{target} is a {'link' if target.is_symlink() else 'mount point'}. Restore the backup"
            f" into a folder within it, such as {target / 'data'}.",
            reason=Reason.IN_USE,
            metadata={"folder": str(target)},
        )


def _check_revisions(manifest: Manifest) -> None:
    """Refuses a backup whose schemas this release does not know."""
    for spec in SERVICES:
        migrations = spec.migrations
        revision = manifest.revisions.get(migrations.schema)
        if revision is None or revision not in migrations.revisions:
            raise FailedPreconditionError(
                f"The backup is of release {manifest.release}, whose schema of"
                f" {migrations.service} this release does not know. Use that release or a newer"
                " one.",
                reason=Reason.SCHEMA_OUTDATED,
                metadata={"service": migrations.service, "found": revision or ""},
            )


def _copy_files(source: Path, manifest: Manifest, target: Path) -> None:
    for name in FOLDERS:
        (target / name).mkdir(mode=0o700, exist_ok=True)
    for name in manifest.files:
        if name != DUMP:
            copy_file(source / name, target / name)


def _compare(expected: Mapping[str, int], restored: Mapping[str, int]) -> None:
    for table, rows in expected.items():
        if restored.get(table) != rows:
            raise DataLossError(
                f"The backup is damaged: {table} has {restored.get(table, 0)} of {rows} rows."
            )
