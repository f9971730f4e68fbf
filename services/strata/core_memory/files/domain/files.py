"""Folders and files, and the errors of operations on them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from strata.protocol.errors import (
    AlreadyExistsError,
    FieldViolation,
    InvalidArgumentError,
    NotFoundError,
    Reason,
    ResourceExhaustedError,
)

PART_BYTES = 1024 * 1024
"""Size of the parts in which bytes are stored, and maximum of an upload's chunk."""

MAX_NAME_CHARS = 255

WHOLE_FILE = (1, 0)
"""The start and end line of a window that shows the whole file, however long it becomes."""

_HASH_DIGITS = 64


class ContentState(StrEnum):
    """State of a content: bytes that are to be converted to text."""

    STORED = "stored"
    TEXT = "text"
    FAILED = "failed"


class FileState(StrEnum):
    """State of a file on its way to the index."""

    PARSING = "parsing"
    INDEXING = "indexing"
    READY = "ready"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        """True if the state does not change without a new upload."""
        return self in (FileState.READY, FileState.FAILED)


@dataclass(frozen=True, slots=True)
class Folder:
    """A named collection of files.

    Attributes:
        id: ``folder-<uuid>``.
        name: Unique in the project.
        description: Description of its content; shown to the model.
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
        id: ``file-<uuid>``; replacing the content keeps the id.
        folder_id: The folder.
        folder_name: Its name.
        name: Name in the folder.
        media_type: MIME type.
        content_key: Key of its content, see `content_key`.
        size_bytes: Bytes of the original.
        line_count: Lines of its text; 0 until it is read.
        state: How far it is processed.
        error: Why it could not be read or indexed, for a person.
        chunk_count: Chunks for the search by meaning; 0 until they are cut.
        indexed_count: How many of them are indexed.
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
        """The name for models: ``FOLDER/FILE``."""
        return f"{self.folder_name}/{self.name}"

    @property
    def content_hash(self) -> str:
        """SHA-256 of the bytes, in hex."""
        return self.content_key[:_HASH_DIGITS]

    @property
    def index_progress(self) -> float:
        """Share of its chunks that are indexed, 0 to 1."""
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
        end_line: Last line shown; 0 for a whole file that has no lines, less than `start_line` if
            the file has fewer lines now.
        last_access_time: When it was last used, UTC.
    """

    file_id: str
    file_name: str
    start_line: int
    end_line: int
    last_access_time: datetime


@dataclass(frozen=True, slots=True)
class NewFolder:
    """A folder to create."""

    name: str
    description: str
    instructions: str


@dataclass(frozen=True, slots=True)
class UploadHeader:
    """The first message of an upload."""

    folder_id: str
    name: str
    media_type: str
    replace: bool


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file whose bytes are stored under the id of an upload.

    Attributes:
        upload_id: ``upload-<uuid>``, the key of the stored parts.
        part_count: Number of parts.
        folder_id: The folder.
        name: Name in the folder.
        media_type: MIME type.
        format: The format of the bytes, which decides how they are read.
        content_key: See `content_key`.
        size_bytes: Total of bytes.
        replace: Replace the content of an existing file of that name.
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
    """Returns the key of a content: the hash of its bytes, and the format if it is converted.

    The same bytes give another text as a web page than as plain text. All formats that are
    only decoded share one content.

    Args:
        sha256: Hash of the bytes, in hex.
        file_format: The format of the bytes.
        converted: True if the format needs a converter, not only decoding.
    """
    return f"{sha256}-{file_format}" if converted else sha256


def folder_not_found(folder_id: str) -> NotFoundError:
    """Returns the error for a folder that does not exist."""
    return NotFoundError(
        f"There is no folder {folder_id}.",
        reason=Reason.FILE_NOT_FOUND,
        metadata={"folder_id": folder_id},
    )


def file_not_found(file_id: str) -> NotFoundError:
    """Returns the error for a file that does not exist."""
    return NotFoundError(
        f"There is no file {file_id}.",
        reason=Reason.FILE_NOT_FOUND,
        metadata={"file_id": file_id},
    )


def folder_name_taken(name: str) -> AlreadyExistsError:
    """Returns the error for a folder name that is taken."""
    return AlreadyExistsError(
        f"The project has a folder {name!r} already.", metadata={"name": name}
    )


def file_name_taken(name: str) -> AlreadyExistsError:
    """Returns the error for a file name that is taken."""
    return AlreadyExistsError(
        f"The folder has another file {name!r}; set replace to put this one in its place.",
        metadata={"name": name},
    )


def file_too_large(limit: int) -> ResourceExhaustedError:
    """Returns the error for a file of more than `limit` bytes."""
    return ResourceExhaustedError(
        f"The file has more than {limit} bytes, the most that is allowed.",
        reason=Reason.MESSAGE_TOO_LARGE,
        metadata={"limit_bytes": limit},
    )


def wrong_field(field: str, message: str) -> InvalidArgumentError:
    """Returns the error for a wrong field, with a message that is written for the model."""
    return InvalidArgumentError(message, violations=[FieldViolation(field, message)])
