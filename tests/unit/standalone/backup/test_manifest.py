"""Damaged and incomplete backups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from strata.protocol.errors import DataLossError, FailedPreconditionError, StrataError
from strata.standalone.backup import manifest as manifests
from strata.standalone.backup.manifest import (
    DUMP,
    MANIFEST,
    Manifest,
    entry_of,
    read_manifest,
    verify_files,
)


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """A backup whose dump has only a few bytes."""
    folder = tmp_path / "backup"
    (folder / "secrets").mkdir(parents=True)
    (folder / DUMP).write_bytes(b"dump" * 1000)
    (folder / "secrets" / "key").write_text("secret")
    names = (DUMP, "secrets/key")
    made = Manifest(
        create_time="2026-01-01T00:00:00+00:00",
        release="0.1.0",
        revisions={"recall": "0003"},
        rows={"recall.messages": 3},
        files={name: entry_of(folder / name) for name in names},
    )
    made.write(folder)
    return folder


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_complete_backup_is_read_unchanged(backup: Path) -> None:
    read = verify_files(backup)
    assert read.rows == {"recall.messages": 3}
    assert read.revisions == {"recall": "0003"}
    assert read.size == 4006
    assert (backup / MANIFEST).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda folder: flip_a_bit(folder / DUMP), "the hash of database.dump does not match"),
        (lambda folder: flip_a_bit(folder / "secrets" / "key"), "the hash of secrets/key"),
        (
            lambda folder: (folder / DUMP).write_bytes(b"dump"),
            "database.dump has 4 of 4000 bytes",
        ),
        (lambda folder: (folder / "secrets" / "key").unlink(), "secrets/key is missing"),
        (lambda folder: (folder / MANIFEST).unlink(), "the backup was interrupted"),
        (lambda folder: (folder / MANIFEST).write_text(""), "cannot be read"),
        (lambda folder: (folder / MANIFEST).write_text("[]"), "cannot be read"),
        (lambda folder: (folder / MANIFEST).write_text("null"), "cannot be read"),
        (lambda folder: (folder / MANIFEST).write_text("[" * 100_000), "cannot be read"),
        (
            lambda folder: (folder / MANIFEST).write_bytes((folder / MANIFEST).read_bytes()[:-20]),
            "cannot be read",
        ),
        (
            lambda folder: (folder / MANIFEST).write_text(
                (folder / MANIFEST).read_text().replace('"recall.messages": 3', '"x": 3')
            ),
            "its hash does not match",
        ),
    ],
)
def test_damage_is_reported_by_file(
    backup: Path, damage: Callable[[Path], object], problem: str
) -> None:
    damage(backup)
    with pytest.raises(DataLossError, match=problem):
        verify_files(backup)


def test_a_folder_that_is_not_a_backup_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FailedPreconditionError, match="is not a backup of Strata"):
        read_manifest(tmp_path)


def test_a_backup_in_a_newer_format_is_refused(
    backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "FORMAT", 0)
    with pytest.raises(StrataError, match=r"release 0\.1\.0, whose backups"):
        read_manifest(backup)


@pytest.mark.parametrize(
    "path", ["../outside", "secrets/../../outside", "/outside", "secrets/..", "secrets/", "logs/x"]
)
def test_file_names_outside_of_the_folders_of_a_backup_are_refused(backup: Path, path: str) -> None:
    manifest = read_manifest(backup)
    files = {**manifest.files, path: manifest.files["secrets/key"]}
    replace(manifest, files=files).write(backup)

    with pytest.raises(DataLossError, match="it names the file"):
        read_manifest(backup)
