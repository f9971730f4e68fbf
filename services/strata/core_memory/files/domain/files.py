"""What a folder and a file are, and what may not be done with them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from strata.shared.errors import (
    AlreadyExistsError,
    NotFoundError,
    Reason,
    ResourceExhaustedError,
)

PART_BYTES = 1024 * 1024
"""Size of the parts in which bytes come and are stored; the last one may be smaller."""

MAX_NAME_CHARS = 255

WHOLE_FILE = (1, 0)
"""The start and end line of a window that shows the whole file, however long it becomes."""

_HASH_DIGITS = 64


class ContentState(StrEnum):
    """How far some bytes are read."""

    STORED = "stored"
    TEXT = "text"
    FAILED = "failed"


class FileState(StrEnum):
    """How far a file is prepared."""

    PARSING = "parsing"
    INDEXING = "indexing"
    READY = "ready"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        """True if nothing more happens to it by itself."""
        return self in (FileState.READY, FileState.FAILED)


@dataclass(frozen=True, slots=True)
class Folder:
    """Some files under a name.

    Attributes:
        id: ``folder-<uuid>``.
        name: Unique in the project.
        description: What is in it; shown to the model.
        instructions: How to use it; shown to the model.
        file_count: Number of files.
        create_time: When it was made, UTC.
    """

    id: str
    name: str
    description: str
    instructions: str
    file_count: int
    create_time: datetime


@dataclass(frozen=True, slots=True)
class File:
    """A file in a folder.

    Attributes:
        id: ``file-<uuid>``; a file that is replaced keeps it.
        folder_id: The folder.
        folder_name: Its name.
        name: Name in the folder.
        media_type: MIME type.
        content_key: Which content it has, see `content_key`.
        size_bytes: Bytes of the original.
        line_count: Lines of its text; 0 until it is read.
        state: How far it is prepared.
        error: Why it could not be read or indexed, for a person.
        chunk_count: Pieces that are to be found by meaning; 0 until they are cut.
        indexed_count: How many of them are.
        create_time: When it was uploaded, UTC.
    """

    id: str
    folder_id: str
    folder_name: str
    name: str
    media_type: str
    content_key: str
    size_bytes: int
    line_count: int
    state: FileState
    error: str
    chunk_count: int
    indexed_count: int
    create_time: datetime

    @property
    def full_name(self) -> str:
        """The name that models know it by: ``FOLDER/FILE``."""
        return f"{self.folder_name}/{self.name}"

    @property
    def content_hash(self) -> str:
        """SHA-256 of the bytes, in hex."""
        return self.content_key[:_HASH_DIGITS]

    @property
    def index_progress(self) -> float:
        """Share of its pieces that are found by meaning, 0 to 1."""
        if self.state is FileState.READY:
            return 1.0
        if self.chunk_count == 0:
            return 0.0
        return min(self.indexed_count / self.chunk_count, 1.0)


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A window into a file.

    Attributes:
        file_id: The file.
        file_name: ``FOLDER/FILE``.
        start_line: First line shown, from 1.
        end_line: Last line shown; 0 for a whole file that has no lines.
        last_access_time: When it was last used, UTC.
    """

    file_id: str
    file_name: str
    start_line: int
    end_line: int
    last_access_time: datetime


@dataclass(frozen=True, slots=True)
class NewFolder:
    """A folder to be made."""

    name: str
    description: str
    instructions: str


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file whose bytes are stored under the id of an upload.

    Attributes:
        upload_id: ``upload-<uuid>``, under which the parts stand.
        part_count: How many there are.
        folder_id: The folder.
        name: Name in the folder.
        media_type: MIME type.
        format: How the bytes are read.
        content_key: See `content_key`.
        size_bytes: Bytes in all.
        replace: Take the place of another file of that name.
    """

    upload_id: str
    part_count: int
    folder_id: str
    name: str
    media_type: str
    format: str
    content_key: str
    size_bytes: int
    replace: bool


def content_key(sha256: str, file_format: str, *, converted: bool) -> str:
    """Returns what names the text of some bytes: their hash, and how they were converted.

    The same bytes are another text as a web page than as plain text; everything that is
    text already is one content whatever it is called.

    Args:
        sha256: Hash of the bytes, in hex.
        file_format: How they are read.
        converted: True if reading is more than decoding.
    """
    return f"{sha256}-{file_format}" if converted else sha256


def folder_not_found(folder_id: str) -> NotFoundError:
    """Returns the error of a folder that is not there."""
    return NotFoundError(
        f"There is no folder {folder_id}.",
        reason=Reason.FILE_NOT_FOUND,
        metadata={"folder_id": folder_id},
    )


def file_not_found(file_id: str) -> NotFoundError:
    """Returns the error of a file that is not there."""
    return NotFoundError(
        f"There is no file {file_id}.",
        reason=Reason.FILE_NOT_FOUND,
        metadata={"file_id": file_id},
    )


def folder_name_taken(name: str) -> AlreadyExistsError:
    """Returns the error of a second folder of one name."""
    return AlreadyExistsError(
        f"The project has a folder {name!r} already.", metadata={"name": name}
    )


def file_name_taken(name: str) -> AlreadyExistsError:
    """Returns the error of another file of one name."""
    return AlreadyExistsError(
        f"The folder has another file {name!r}; set replace to put this one in its place.",
        metadata={"name": name},
    )


def file_too_large(limit: int) -> ResourceExhaustedError:
    """Returns the error of a file of more than `limit` bytes."""
    return ResourceExhaustedError(
        f"The file has more than {limit} bytes, the most that is allowed.",
        reason=Reason.MESSAGE_TOO_LARGE,
        metadata={"limit_bytes": limit},
    )
