"""What folders and files need of a database and of the archival service."""

from __future__ import annotations

from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from strata.core_memory.domain.core_memory import Receipt
from strata.core_memory.files.domain.files import File, Folder, NewFile, NewFolder, OpenFile


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a file, whole lines.

    Attributes:
        ordinal: Place in the file, from 0.
        text: The text; not blank.
        start_line: First line, from 1.
        end_line: Last line.
    """

    ordinal: int
    text: str
    start_line: int
    end_line: int


@dataclass(frozen=True, slots=True)
class ChunkHit:
    """A found piece; `score` is comparable within one search only."""

    file_id: str
    chunk: Chunk
    score: float


@dataclass(frozen=True, slots=True)
class ChunkFindings:
    """The best pieces, best first, and how many of the nearest are left out as unrelated."""

    hits: Sequence[ChunkHit]
    below_floor: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """How many pieces of a file there are in the index's service, and how many are indexed."""

    chunk_count: int
    indexed_count: int


class FileIndex(Protocol):
    """The archival service's index of files.

    Every method but `search` is background work: it signs in by itself for the project.

    Raises (every method):
        UnavailableError: The service cannot be reached.
    """

    async def index(
        self, project_id: str, folder_id: str, file_id: str, chunks: AsyncIterable[Sequence[Chunk]]
    ) -> int:
        """Puts the pieces of a file in the place of those there were; returns how many."""
        ...

    async def progress(self, project_id: str, file_ids: Sequence[str]) -> Mapping[str, Progress]:
        """Returns how far files are indexed; unknown ones are left out."""
        ...

    async def drop(
        self, project_id: str, *, file_ids: Sequence[str] = (), folder_ids: Sequence[str] = ()
    ) -> None:
        """Forgets files, or all files of folders; unknown ones are no error."""
        ...

    async def search(
        self, folder_ids: Sequence[str], query: str, limit: int, *, explain: bool = False
    ) -> ChunkFindings:
        """Finds pieces by meaning and words, as the caller of the call being served.

        Args:
            folder_ids: The folders to search.
            query: A question or words.
            limit: Most pieces to return.
            explain: Count what is left out as unrelated to the query.
        """
        ...


class FolderStore(Protocol):
    """Folders of the calling project, and which agents see them."""

    async def create(self, receipt: Receipt[Folder], folder: NewFolder) -> Folder:
        """Makes a folder.

        Raises:
            ReplayedError: The request was done before.
            AlreadyExistsError: ``NAME_TAKEN`` or ``REQUEST_ID_REUSED``.
        """
        ...

    async def of_project(self, after: str, count: int) -> list[Folder]:
        """Returns folders by name, after a name."""
        ...

    async def of_agent(self, agent_id: str, after: str, count: int) -> list[Folder]:
        """Returns the folders attached to an agent by name, after a name."""
        ...

    async def get(self, folder_id: str) -> Folder | None:
        """Returns a folder."""
        ...

    async def delete(self, folder_id: str) -> None:
        """Deletes a folder with its files and all that only they need.

        Raises:
            NotFoundError: There is none (``FILE_NOT_FOUND``).
        """
        ...

    async def attach(self, agent_id: str, folder_id: str) -> Folder:
        """Shows a folder to an agent, after those that it has; again is success.

        Raises:
            NotFoundError: ``FILE_NOT_FOUND`` or ``AGENT_NOT_FOUND``.
        """
        ...

    async def detach(self, agent_id: str, folder_id: str) -> None:
        """Hides a folder from an agent and closes its files; again is success.

        Raises:
            NotFoundError: ``FILE_NOT_FOUND`` or ``AGENT_NOT_FOUND``.
        """
        ...


class FileStore(Protocol):
    """Files of the calling project."""

    async def get(self, file_id: str) -> File | None:
        """Returns a file."""
        ...

    async def of_folder(self, folder_id: str, after: str, count: int) -> list[File]:
        """Returns files of a folder by name, after a name."""
        ...

    async def of_agent(self, agent_id: str, after: tuple[str, str], count: int) -> list[File]:
        """Returns files of an agent by folder and name, after such a pair."""
        ...

    async def open_of_agent(self, agent_id: str) -> list[OpenFile]:
        """Returns the windows that an agent has open, by name."""
        ...

    async def delete(self, file_id: str) -> None:
        """Deletes a file and all that only it needs.

        Raises:
            NotFoundError: There is none (``FILE_NOT_FOUND``).
        """
        ...


class UploadStore(Protocol):
    """Bytes on their way in."""

    async def put(self, upload_id: str, part: int, data: bytes) -> None:
        """Stores one part, for good as far as the database is concerned.

        What is never finished is removed by the worker.
        """
        ...

    async def discard(self, upload_id: str) -> None:
        """Removes the parts of an upload."""
        ...

    async def finish(self, receipt: Receipt[File], file: NewFile) -> File:
        """Makes a file of the parts, all or nothing.

        Raises:
            ReplayedError: The request was done before.
            NotFoundError: There is no such folder (``FILE_NOT_FOUND``).
            AlreadyExistsError: ``NAME_TAKEN`` or ``REQUEST_ID_REUSED``.
            UnavailableError: The parts were removed meanwhile; the upload took too long.
        """
        ...
