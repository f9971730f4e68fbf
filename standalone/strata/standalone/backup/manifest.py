"""The manifest of a backup: its files with their hashes, and the contents of the database.

A backup is a folder. Its manifest is written last, and the folder gets its name after that. So an
interrupted backup has no manifest, and a name that marks it as incomplete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from strata.protocol.errors import DataLossError, FailedPreconditionError, Reason
from strata.standalone.files import write_atomically

FORMAT = 1
MANIFEST = "manifest.json"
DUMP = "database.dump"
SECRETS = "secrets"
FOLDERS = (SECRETS, "prompts")
"""Folders of the data folder that a backup contains, with the files in them."""
PARTIAL = ".partial"
"""The end of the name of a backup, or of a data folder, that is not complete."""
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a backup.

    Attributes:
        size: Its bytes.
        sha256: Their hash, hex digits.
        mode: Its permissions.
    """

    size: int
    sha256: str
    mode: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a backup.

    Attributes:
        create_time: When it was made, ISO 8601.
        release: The release that made it.
        revisions: The schema of each service.
        rows: The rows of each table, by ``schema.table``.
        files: Its files by path within the backup.
    """

    create_time: str
    release: str
    revisions: Mapping[str, str]
    rows: Mapping[str, int]
    files: Mapping[str, FileEntry]

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(entry.size for entry in self.files.values())

    def write(self, folder: Path) -> None:
        """Writes the manifest into a folder."""
        content = {"format": FORMAT, **asdict(self)}
        text = json.dumps({**content, "digest": _digest(content)}, indent=1, sort_keys=True)
        write_atomically(folder / MANIFEST, text)


def entry_of(path: Path) -> FileEntry:
    """Returns the size, the hash and the permissions of a file."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return FileEntry(size, digest.hexdigest(), path.stat().st_mode & 0o777)


def read_manifest(folder: Path) -> Manifest:
    """Reads the manifest of a backup.

    Raises:
        FailedPreconditionError: The folder is not a backup, or one of a newer release.
        DataLossError: The backup is not complete, or its manifest was changed.
    """
    try:
        content: Any = json.loads((folder / MANIFEST).read_text("utf-8"))
    except FileNotFoundError:
        if (folder / DUMP).exists():
            raise DataLossError(f"{folder} is not complete: the backup was interrupted.") from None
        raise FailedPreconditionError(
            f"{folder} is not a backup of Strata: it has no {MANIFEST}.",
            reason=Reason.IN_USE,
            metadata={"folder": str(folder)},
        ) from None
    except (ValueError, RecursionError, OSError) as error:
        raise DataLossError(f"{folder / MANIFEST} cannot be read: it is damaged.") from error
    if not isinstance(content, dict):
        raise DataLossError(f"{folder / MANIFEST} cannot be read: it is damaged.")
    if content.pop("digest", "") != _digest(content):
        raise DataLossError(f"{folder / MANIFEST} is damaged: its hash does not match.")
    if content.pop("format") != FORMAT:
        raise FailedPreconditionError(
            f"{folder} was written by release {content.get('release')}, whose backups this release"
            " does not know. Use that release or a newer one.",
            reason=Reason.SCHEMA_OUTDATED,
        )
    files = {path: FileEntry(**entry) for path, entry in content.pop("files").items()}
    for path in files:
        if not _is_of_backup(path):
            raise DataLossError(f"{folder / MANIFEST} is damaged: it names the file {path!r}.")
    return Manifest(files=files, **content)


def verify_files(folder: Path) -> Manifest:
    """Checks every file of a backup against its hash, and returns the manifest.

    Raises:
        FailedPreconditionError: See `read_manifest`.
        DataLossError: A file is missing or was changed; the message names it.
    """
    manifest = read_manifest(folder)
    for name, entry in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise DataLossError(f"{folder} is damaged: {name} is missing.")
        actual = entry_of(path)
        if (actual.size, actual.sha256) != (entry.size, entry.sha256):
            raise DataLossError(
                f"{folder} is damaged: {name} has {actual.size} of {entry.size} bytes."
                if actual.size != entry.size
                else f"{folder} is damaged: the hash of {name} does not match."
            )
    return manifest


def _is_of_backup(path: str) -> bool:
    """Returns whether a backup can contain a path; such paths never lead out of its folder."""
    folder, _, name = path.partition("/")
    return path == DUMP or (folder in FOLDERS and "/" not in name and name not in {"", ".", ".."})


def _digest(content: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
