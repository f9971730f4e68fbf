"""The interfaces of the stores and of the archival service that folders and files use."""

from __future__ import annotations

from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from strata.core_memory.domain.core_memory import Receipt
from strata.core_memory.files.domain.files import File, Folder, NewFile, NewFolder, OpenFile


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive lines of a file (or a part of a long line), the unit of search by meaning.

    Attributes:
        ordinal: Position in the file, from 0.
        text: The text; not blank.
        start_line: First line, from 1.
        end_line: Last line.
        heading: The name of the file and the headings above the text, a line each.
    """

    ordinal: int
    text: str
    start_line: int
    end_line: int
    heading: str = ""


@dataclass(frozen=True, slots=True)
class ChunkHit:
    """A found chunk; scores are comparable only within one search."""

    file_id: str
    chunk: Chunk
    score: float


@dataclass(frozen=True, slots=True)
class ChunkFindings:
    """The best chunks, best first, and how many were left out because their score is too low."""

    hits: Sequence[ChunkHit]
    below_floor: int = 0


@dataclass(frozen=True, slots=True)
class IndexProgress:
    """The number of chunks of a file in the archival service, and how many are indexed."""

    chunk_count: int
    indexed_count: int


class FileIndex(Protocol):
    """The archival service's index of files.

    Every method but `search` is background work and authenticates with its own token.

    Raises (every method):
        UnavailableError: The service cannot be reached.
    """

    async def index(
        self, project_id: str, folder_id: str, file_id: str, chunks: AsyncIterable[Sequence[Chunk]]
    ) -> int:
        """Replaces the chunks of a file in the index; returns their number."""
        ...

    async def progress(
        self, project_id: str, file_ids: Sequence[str]
    ) -> Mapping[str, IndexProgress]:
        """Returns the indexing progress of files; unknown files are left out."""
        ...

    async def drop(
        self, project_id: str, *, file_ids: Sequence[str] = (), folder_ids: Sequence[str] = ()
    ) -> None:
        """Removes files, or all files of folders, from the index; ignores unknown ids."""
        ...

    async def search(
        self, folder_ids: Sequence[str], query: str, limit: int, *, explain: bool = False
    ) -> ChunkFindings:
        """Searches chunks by meaning and words, with the identity of the current caller.

        Args:
            folder_ids: The folders to search.
            query: A question or words.
            limit: Maximum of chunks to return.
            explain: Count the chunks that are left out because their score is too low.
        """
        ...


class FolderStore(Protocol):
    """Folders of the calling project, and their attachments to agents."""

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
        """Returns a folder; None if it does not exist."""
        ...

    async def delete(self, folder_id: str) -> None:
        """Deletes a folder with its files, and contents that no other file has.

        Raises:
            NotFoundError: There is none (``FILE_NOT_FOUND``).
        """
        ...

    async def attach(self, agent_id: str, folder_id: str) -> Folder:
        """Attaches a folder to an agent, after its other folders; idempotent.

        Raises:
            NotFoundError: ``FILE_NOT_FOUND`` or ``AGENT_NOT_FOUND``.
        """
        ...

    async def detach(self, agent_id: str, folder_id: str) -> None:
        """Detaches a folder from an agent and closes its files; idempotent.

        Raises:
            NotFoundError: ``FILE_NOT_FOUND`` or ``AGENT_NOT_FOUND``.
        """
        ...


class FileStore(Protocol):
    """Files of the calling project."""

    async def get(self, file_id: str) -> File | None:
        """Returns a file; None if it does not exist."""
        ...

    async def of_folder(self, folder_id: str, after: str, count: int) -> list[File]:
        """Returns files of a folder by name, after a name."""
        ...

    async def of_agent(self, agent_id: str, after: tuple[str, str], count: int) -> list[File]:
        """Returns files of an agent by folder and name, after a pair of these."""
        ...

    async def open_of_agent(self, agent_id: str) -> list[OpenFile]:
        """Returns the windows that an agent has open, by name."""
        ...

    async def delete(self, file_id: str) -> None:
        """Deletes a file, and its content if no other file has it.

        Raises:
            NotFoundError: There is none (``FILE_NOT_FOUND``).
        """
        ...


class UploadStore(Protocol):
    """Stores uploads part by part, and makes files of them."""

    async def put(self, upload_id: str, part: int, data: bytes) -> None:
        """Stores and commits one part.

        The worker removes the parts of uploads that are never finished.
        """
        ...

    async def discard(self, upload_id: str) -> None:
        """Removes the parts of an upload."""
        ...

    async def finish(self, receipt: Receipt[File], file: NewFile) -> File:
        """Makes a file of the parts, in one transaction.

        Raises:
            ReplayedError: The request was done before.
            NotFoundError: There is no such folder (``FILE_NOT_FOUND``).
            AlreadyExistsError: ``NAME_TAKEN`` or ``REQUEST_ID_REUSED``.
            UnavailableError: The upload took too long, and its parts were removed.
        """
        ...
