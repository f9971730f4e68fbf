"""The interfaces of the stores of archival memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol

from strata.archival.domain.history import Author, PassageChange, PassageVersion, UploadProgress
from strata.archival.domain.passages import (
    AgentStats,
    Archive,
    ArchiveChange,
    ArchiveRef,
    Cursor,
    Filter,
    InsertedPassage,
    NewPassage,
    Passage,
)
from strata.shared.idempotency.keys import RequestKey
from strata.shared.search.result_merge import DatabaseSnapshot

NOT_REPEATABLE = RequestKey()


class ArchiveStore(Protocol):
    """Archives of the current project; each method is one transaction."""

    async def create(self, archive: Archive, agent_id: str, request: RequestKey) -> Archive:
        """Stores an archive; a repeated request returns the archive of the first one.

        Raises:
            AlreadyExistsError: The name is taken, or ``REQUEST_ID_REUSED``.
            NotFoundError: ``AGENT_NOT_FOUND``.
        """
        ...

    async def get(self, archive_id: str) -> Archive:
        """Returns an archive.

        Raises:
            NotFoundError: ``ARCHIVE_NOT_FOUND``.
        """
        ...

    async def page(self, agent_id: str, count: int, cursor: Cursor | None) -> list[Archive]:
        """Returns archives by id, of one agent or of all, after a cursor."""
        ...

    async def update(
        self,
        archive_id: str,
        change: ArchiveChange,
        now: datetime,
        request: RequestKey = NOT_REPEATABLE,
    ) -> Archive:
        """Changes an archive; a repeated request MUST return the first response.

        Raises:
            NotFoundError: ``ARCHIVE_NOT_FOUND``.
            AlreadyExistsError: The name is taken, or ``REQUEST_ID_REUSED``: the request's id
                was used for something else.
        """
        ...

    async def delete(self, archive_id: str) -> int:
        """Deletes an archive with its passages; returns the number of passages.

        Raises:
            NotFoundError: ``ARCHIVE_NOT_FOUND``.
        """
        ...

    async def attach(self, agent_id: str, archive_id: str) -> Archive:
        """Attaches an archive to an agent; idempotent.

        Raises:
            NotFoundError: ``ARCHIVE_NOT_FOUND``, ``AGENT_NOT_FOUND``.
        """
        ...

    async def detach(self, agent_id: str, archive_id: str) -> None:
        """Detaches an archive from an agent; idempotent.

        Raises:
            NotFoundError: ``ARCHIVE_NOT_FOUND``, ``AGENT_NOT_FOUND``.
        """
        ...

    async def prepare(self, agent_id: str) -> None:
        """Registers an agent, which is required to store or attach anything for it."""
        ...

    async def stats(self, agent_id: str) -> AgentStats:
        """Returns counts of an agent's archives without reading passages."""
        ...

    async def tags(self, archive_id: str, agent_id: str) -> Mapping[str, int]:
        """Returns the tags of an archive or of an agent's archives with counts, by name."""
        ...

    async def release(self, agent_id: str) -> int:
        """Deletes an agent's record and its own archive; returns the number of deleted passages.

        The archive stays, as a shared one, if it is attached to another agent.
        """
        ...


class PassageStore(Protocol):
    """Passages of the current project; each method is one transaction.

    Deleted and expired passages are not returned.
    """

    async def insert(
        self,
        archive_ref: ArchiveRef,
        passages: Sequence[NewPassage],
        template: Archive,
        request: RequestKey = NOT_REPEATABLE,
    ) -> list[InsertedPassage]:
        """Stores passages; the same text MUST be stored only once in an archive.

        Args:
            archive_ref: The archive, or the agent whose own archive is created with its first
                passage.
            passages: The passages.
            template: The agent's own archive, if it must be created.
            request: For a single passage: a repeated request MUST return the first response.

        Raises:
            NotFoundError: ``ARCHIVE_NOT_FOUND``, ``AGENT_NOT_FOUND``.
            AlreadyExistsError: ``REQUEST_ID_REUSED``: the id was used for another request.
            InvalidArgumentError: A vector is not of the archive's model, or a passage is too
                old for its time-to-live.
        """
        ...

    async def progress(self, request: RequestKey) -> UploadProgress:
        """Returns the stored progress of an upload; zero without a request id.

        Args:
            request: The key of the upload, with a digest of its archive or agent.

        Raises:
            AlreadyExistsError: ``REQUEST_ID_REUSED``.
        """
        ...

    async def upload(
        self,
        archive_ref: ArchiveRef,
        passages: Sequence[NewPassage],
        template: Archive,
        request: RequestKey,
        progress: UploadProgress,
        digest: str,
    ) -> UploadProgress:
        """Stores the next passages of an upload together with its progress.

        If a concurrent stream with the same id has stored passages since `progress`, nothing is
        stored: the caller compares them with its own by the digest of the returned progress.

        Args:
            archive_ref: As for `insert`.
            passages: As for `insert`.
            template: As for `insert`.
            request: The key of the upload.
            progress: The progress before these passages.
            digest: Digest of the passages up to the last of these; see `UploadProgress`.

        Raises:
            NotFoundError: ``ARCHIVE_NOT_FOUND``, ``AGENT_NOT_FOUND``.
            AlreadyExistsError: ``REQUEST_ID_REUSED``.
            UnavailableError: The progress of the upload has expired; it must be sent again.
        """
        ...

    async def complete(self, request: RequestKey, progress: UploadProgress) -> UploadProgress:
        """Records the end of an upload; returns its progress.

        Raises:
            AlreadyExistsError: ``REQUEST_ID_REUSED``.
            UnavailableError: As for `upload`.
        """
        ...

    async def get(self, passage_id: str, *, show_deleted: bool = False) -> Passage:
        """Returns a passage.

        Raises:
            NotFoundError: ``PASSAGE_NOT_FOUND``.
        """
        ...

    async def page(self, within: Filter, count: int, cursor: Cursor | None) -> list[Passage]:
        """Returns passages after a cursor, oldest first."""
        ...

    async def archive_ids(self, agent_id: str) -> list[str]:
        """Returns the ids of an agent's archives.

        Raises:
            NotFoundError: ``AGENT_NOT_FOUND``.
        """
        ...

    async def check_archives(self, archive_ids: Sequence[str]) -> None:
        """Refuses archives that do not exist.

        Raises:
            NotFoundError: ``ARCHIVE_NOT_FOUND``, for the first of them.
        """
        ...

    def open_snapshot(
        self, words: str, within: Filter, limit: int, *, all_words: bool = False
    ) -> AbstractAsyncContextManager[DatabaseSnapshot[Passage]]:
        """Opens a snapshot of the passages that meet the conditions.

        Args:
            words: Words to search in the passages that wait for the index.
            within: The conditions.
            limit: Maximum of results by words.
            all_words: Search all passages by words, also those that are indexed.
        """
        ...

    async def by_words(self, words: str, within: Filter, limit: int) -> list[tuple[Passage, float]]:
        """Returns the passages that match the words best, with their scores."""
        ...


class PassageHistory(Protocol):
    """Changes of passages of the current project; each method is one transaction.

    Each change stores the previous state as a version. Expired passages count as deleted.
    """

    async def update(self, passage_id: str, change: PassageChange, now: datetime) -> Passage:
        """Changes a passage; a repeated request changes nothing and returns the first response.

        Raises:
            NotFoundError: ``PASSAGE_NOT_FOUND``.
            AbortedError: ``REVISION_MISMATCH``.
            AlreadyExistsError: ``NAME_TAKEN``: the archive has a passage with that text;
                ``REQUEST_ID_REUSED``.
        """
        ...

    async def add_tags(
        self, passage_id: str, tags: Sequence[str], author: Author, now: datetime
    ) -> Passage:
        """Adds tags to a passage; changes nothing if it has them all.

        Raises:
            UnavailableError: It was deleted meanwhile.
        """
        ...

    async def delete(self, passage_id: str, author: Author, now: datetime) -> None:
        """Hides a passage; idempotent.

        Raises:
            NotFoundError: ``PASSAGE_NOT_FOUND``.
        """
        ...

    async def restore(
        self, passage_id: str, revision: int, change: PassageChange, now: datetime
    ) -> Passage:
        """Restores a deleted passage (revision 0) or a version; otherwise as `update`.

        Of the change only author, request and expected revision are used. With revision 0, a
        passage that is not deleted does not change.

        Raises:
            NotFoundError: ``PASSAGE_NOT_FOUND``, ``VERSION_NOT_FOUND``.
            AbortedError: ``REVISION_MISMATCH``.
            AlreadyExistsError: ``NAME_TAKEN``, ``REQUEST_ID_REUSED``.
        """
        ...

    async def purge(self, passage_id: str, request: RequestKey) -> int:
        """Destroys a passage with its versions; returns the number of versions.

        Raises:
            NotFoundError: ``PASSAGE_NOT_FOUND``.
            AlreadyExistsError: ``REQUEST_ID_REUSED``.
        """
        ...

    async def versions(
        self, passage_id: str, count: int, cursor: Cursor | None
    ) -> list[PassageVersion]:
        """Returns versions after a cursor, newest first, also of deleted passages.

        Raises:
            NotFoundError: ``PASSAGE_NOT_FOUND``.
        """
        ...
