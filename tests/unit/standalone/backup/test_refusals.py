"""Refused and failed backups and restores."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata.protocol.errors import DataLossError, FailedPreconditionError, UnavailableError
from strata.standalone.backup import restoring, writing
from strata.standalone.backup.manifest import DUMP, PARTIAL, Manifest, entry_of
from strata.standalone.backup.restoring import restore_backup
from strata.standalone.backup.writing import write_backup
from strata.standalone.compose.services import SERVICES
from strata.standalone.data_folder import DataFolder
from strata.standalone.files import partial_folder


@pytest.fixture
def data(tmp_path: Path) -> DataFolder:
    """A data folder whose database was never started."""
    folder = DataFolder(tmp_path / "data")
    (folder.postgres / "data").mkdir(parents=True)
    (folder.postgres / "data" / "PG_VERSION").write_text("18")
    return folder


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def make(folder: Path) -> None:
    (folder / "file").touch()


def make_backup(folder: Path, **revisions: str) -> Path:
    """Writes a backup with the schemas of this release; arguments replace their revisions."""
    folder.mkdir()
    (folder / DUMP).write_bytes(b"dump")
    heads = {spec.migrations.schema: spec.migrations.head for spec in SERVICES}
    made = Manifest("2026", "0.9", heads | revisions, {}, {DUMP: entry_of(folder / DUMP)})
    made.write(folder)
    return folder


async def test_a_folder_without_data_is_not_backed_up(tmp_path: Path) -> None:
    with pytest.raises(FailedPreconditionError, match="is not a data folder"):
        await write_backup(DataFolder(tmp_path / "nothing"), tmp_path / "backup")
    assert names(tmp_path) == []


async def test_a_backup_never_overwrites_an_existing_folder(
    data: DataFolder, tmp_path: Path
) -> None:
    (tmp_path / "backup").mkdir()
    with pytest.raises(FailedPreconditionError, match="exists"):
        await write_backup(data, tmp_path / "backup")


async def test_a_failed_backup_leaves_no_folder(
    data: DataFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "open_database", lambda _: _Failing())
    with pytest.raises(UnavailableError, match="the disk is full"):
        await write_backup(data, tmp_path / "backup")
    assert names(tmp_path) == ["data"]


class _Failing:
    async def __aenter__(self) -> str:
        raise UnavailableError("the disk is full")

    async def __aexit__(self, *_: object) -> None:
        """Never called."""


async def test_an_error_of_the_file_system_is_reported(data: DataFolder, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError, match=r"not written: .+ \(.*file.*\)"):
        await write_backup(data, tmp_path / "file" / "backup")


async def test_a_data_folder_in_use_is_not_overwritten(tmp_path: Path) -> None:
    backup, target = make_backup(tmp_path / "backup"), tmp_path / "data"
    target.mkdir()
    (target / "file").touch()
    with pytest.raises(FailedPreconditionError, match="is not empty"):
        await restore_backup(backup, target)
    assert names(target) == ["file"]


async def test_a_link_is_refused_as_the_new_data_folder_at_once(tmp_path: Path) -> None:
    backup = make_backup(tmp_path / "backup")
    (tmp_path / "disk").mkdir()
    (tmp_path / "data").symlink_to(tmp_path / "disk")
    with pytest.raises(FailedPreconditionError, match=r"is a link\. Restore .+/data/data\."):
        await restore_backup(backup, tmp_path / "data")
    assert names(tmp_path / "disk") == []


async def test_a_mount_point_is_refused_as_the_new_data_folder_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = make_backup(tmp_path / "backup")
    (tmp_path / "data").mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda self: self == tmp_path / "data")
    with pytest.raises(FailedPreconditionError, match="is a mount point"):
        await restore_backup(backup, tmp_path / "data")


async def test_a_backup_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    backup = make_backup(tmp_path / "backup", recall="9999")
    with pytest.raises(FailedPreconditionError, match=r"release 0\.9, whose schema of recall"):
        await restore_backup(backup, tmp_path / "data")
    assert not (tmp_path / "data").exists()


async def test_a_failed_restore_leaves_no_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def build(source: Path, manifest: Manifest, path: Path) -> None:
        make(path)
        raise DataLossError("rows are missing")

    monkeypatch.setattr(restoring, "_build", build)
    backup = make_backup(tmp_path / "backup")
    with pytest.raises(DataLossError, match="rows are missing"):
        await restore_backup(backup, tmp_path / "data")
    assert names(tmp_path) == ["backup"]


async def test_two_backups_at_once_do_not_mix_their_files(data: DataFolder, tmp_path: Path) -> None:
    partial = tmp_path / f"backup{PARTIAL}"
    with partial_folder(partial):
        make(partial)
        with pytest.raises(FailedPreconditionError, match=r"Another process is writing .*backup"):
            await write_backup(data, tmp_path / "backup")
        assert names(partial) == ["file"]


async def test_two_restores_at_once_do_not_mix_their_files(tmp_path: Path) -> None:
    backup, partial = make_backup(tmp_path / "backup"), tmp_path / f"data{PARTIAL}"
    with partial_folder(partial):
        make(partial)
        with pytest.raises(FailedPreconditionError, match=r"Another process is writing .*data"):
            await restore_backup(backup, tmp_path / "data")
        assert names(partial) == ["file"]


def test_what_an_interrupted_backup_left_is_removed(tmp_path: Path) -> None:
    partial = tmp_path / f"backup{PARTIAL}"
    (partial / "secrets").mkdir(parents=True)
    (partial / "secrets" / "key").touch()
    (partial / DUMP).symlink_to(tmp_path)
    partial.chmod(0o755)
    with partial_folder(partial):
        assert names(partial) == []
        assert partial.stat().st_mode & 0o777 == 0o700
    assert names(tmp_path) == [partial.name]
