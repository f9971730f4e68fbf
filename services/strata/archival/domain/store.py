"""What archival memory needs of its stores and its index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol

from strata.archival.domain.history import Author, Change, Progress, VersionPage
from strata.archival.domain.passages import (
    AgentStats,
    Archive,
    ArchiveChange,
    ArchivePage,
    Cursor,
    Filter,
    Inserted,
    NewPassage,
    Page,
    Passage,
    Place,
    Request,
    Uploaded,
)
from strata.shared.vectors.result_merge import Look

NOT_REPEATABLE = Request()


class ArchiveStore(Protocol):
    """Archives of the current project; each method is one transaction."""

    async def create(self, archive: Archive, agent_id: str, request_id: str) -> Archive:
        """Stores an archive; MUST return the first one for a repeated request id.

        Raises:
            AlreadyExistsError: The name is taken.
            NotFoundError: ``AGENT_NOT_FOUND``.
        """
        ...

    async def get(self, archive_id: str) -> Archive:
        """Returns an archive.

        Raises:
            NotFoundError: ``ARCHIVE_NOT_FOUND``.
        """
        ...

    async def page(self, agent_id: str, limit: int, cursor: Cursor | None) -> ArchivePage:
        """Returns a page by id, of one agent or of all."""
        ...

    async def update(
        self,
        archive_id: str,
        change: ArchiveChange,
        now: datetime,
        request: Request = NOT_REPEATABLE,
    ) -> Archive:
        """Changes an archive; a repeated request MUST give the first answer.

        Raises:
            NotFoundError: ``ARCHIVE_NOT_FOUND``.
            AlreadyExistsError: The name is taken, or ``REQUEST_ID_REUSED``: the request's id
                was used for something else.
        """
        ...

    async def delete(self, archive_id: str) -> int:
        """Deletes an archive with its passages, and returns how many these were.

        Raises:
            NotFoundError: ``ARCHIVE_NOT_FOUND``.
        """
        ...

    async def attach(self, agent_id: str, archive_id: str) -> Archive:
        """Gives an archive to an agent; repeating it is success.

        Raises:
            NotFoundError: ``ARCHIVE_NOT_FOUND``, ``AGENT_NOT_FOUND``.
        """
        ...

    async def detach(self, agent_id: str, archive_id: str) -> None:
        """Takes an archive from an agent; repeating it is success.

        Raises:
            NotFoundError: ``ARCHIVE_NOT_FOUND``, ``AGENT_NOT_FOUND``.
        """
        ...

    async def prepare(self, agent_id: str) -> None:
        """Makes an agent known; without that nothing is stored or attached for it."""
        ...

    async def stats(self, agent_id: str) -> AgentStats:
        """Returns counts without reading passages."""
        ...

    async def tags(self, archive_id: str, agent_id: str) -> Mapping[str, int]:
        """Returns the tags of an archive or of an agent's archives with counts, by name."""
        ...

    async def release(self, agent_id: str) -> int:
        """Forgets an agent, deletes its own archive, and returns the passages deleted."""
        ...


class PassageStore(Protocol):
    """Passages of the current project; each method is one transaction.

    What is deleted or older than its archive keeps is found by none of them.
    """

    async def insert(
        self, place: Place, passages: Sequence[NewPassage], template: Archive, request_id: str
    ) -> list[Inserted]:
        """Stores passages; the same text in one archive MUST be stored once.

        Args:
            place: The archive, or the agent whose own archive is made at its first passage.
            passages: What to store.
            template: The agent's own archive, if it must be made.
            request_id: A repeated one of a single passage MUST give the first answer.

        Raises:
            NotFoundError: ``ARCHIVE_NOT_FOUND``, ``AGENT_NOT_FOUND``.
            AlreadyExistsError: ``REQUEST_ID_REUSED``: it was used for another text.
            InvalidArgumentError: A vector is not of the archive's model, or a passage is too
                old for its time-to-live.
        """
        ...

    async def finish_upload(
        self,
        place: Place,
        passages: Sequence[NewPassage],
        template: Archive,
        request: Request,
        before: Uploaded,
    ) -> Uploaded:
        """Stores the last passages of an upload together with its answer.

        Args:
            place: As for `insert`.
            passages: As for `insert`.
            template: As for `insert`.
            request: The whole upload. A repeated one MUST give the first answer.
            before: What the upload has stored until now.

        Raises:
            NotFoundError: ``ARCHIVE_NOT_FOUND``, ``AGENT_NOT_FOUND``.
            AlreadyExistsError: ``REQUEST_ID_REUSED``.
        """
        ...

    async def upload_answer(self, request: Request) -> Uploaded | None:
        """Returns what a finished upload was answered; None if there is none.

        Raises:
            AlreadyExistsError: ``REQUEST_ID_REUSED``.
        """
        ...

    async def is_answered(self, request_id: str) -> bool:
        """Says whether a request of this id was answered."""
        ...

    async def progress(self, request: Request) -> Progress:
        """Returns how far an upload is; nowhere without an id.

        Args:
            request: The upload; its digest tells the place from others.

        Raises:
            AlreadyExistsError: ``REQUEST_ID_REUSED``.
        """
        ...

    async def upload(
        self,
        place: Place,
        passages: Sequence[NewPassage],
        template: Archive,
        request: Request,
        seen: Progress,
        said: str,
    ) -> Progress:
        """Stores the next passages of an upload together with how far it is then.

        Args:
            place: As for `insert`.
            passages: As for `insert`.
            template: As for `insert`.
            request: The upload. Of what another stream of it has stored meanwhile, nothing is
                stored again.
            seen: How far it was before these passages.
            said: Digest of the passages up to the last of these; see `Progress`.

        Raises:
            NotFoundError: ``ARCHIVE_NOT_FOUND``, ``AGENT_NOT_FOUND``.
            AlreadyExistsError: ``REQUEST_ID_REUSED``.
            UnavailableError: What was known of the upload is forgotten; it must be sent again.
        """
        ...

    async def complete(self, request: Request, seen: Progress) -> Progress:
        """Notes that nothing more comes of an upload, and returns how far it is.

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

    async def page(self, within: Filter, limit: int, cursor: Cursor | None) -> Page:
        """Returns a page, oldest first."""
        ...

    async def archive_ids(self, agent_id: str) -> list[str]:
        """Returns the archives of an agent."""
        ...

    def look(
        self, words: str, within: Filter, limit: int, *, all_words: bool = False
    ) -> AbstractAsyncContextManager[Look[Passage]]:
        """Looks at the conditions' passages as they are when the context is entered.

        Args:
            words: What those that wait for the index are searched for.
            within: The conditions.
            limit: Most of these.
            all_words: Search all passages by words, also those that the index has.
        """
        ...

    async def by_words(self, words: str, within: Filter, limit: int) -> list[tuple[Passage, float]]:
        """Returns, of the conditions' passages, the best by words with their scores."""
        ...


class PassageHistory(Protocol):
    """Changes of passages of the current project; each method is one transaction.

    Each change moves what was before to the versions. What is older than its archive keeps
    is not there.
    """

    async def update(self, passage_id: str, change: Change, now: datetime) -> Passage:
        """Changes a passage; a repeated request changes nothing and gets the first answer.

        Raises:
            NotFoundError: ``PASSAGE_NOT_FOUND``.
            AbortedError: ``REVISION_MISMATCH``.
            AlreadyExistsError: ``NAME_TAKEN``: the archive holds that text;
                ``REQUEST_ID_REUSED``.
        """
        ...

    async def delete(self, passage_id: str, author: Author, now: datetime) -> None:
        """Hides a passage; repeating it is success.

        Raises:
            NotFoundError: ``PASSAGE_NOT_FOUND``.
        """
        ...

    async def restore(
        self, passage_id: str, revision: int, change: Change, now: datetime
    ) -> Passage:
        """Brings back a deleted passage (revision 0) or a version; otherwise as `update`.

        Of the change only author, request and expected revision count. A passage that is
        not deleted stays as it is at revision 0.

        Raises:
            NotFoundError: ``PASSAGE_NOT_FOUND``, ``VERSION_NOT_FOUND``.
            AbortedError: ``REVISION_MISMATCH``.
            AlreadyExistsError: ``NAME_TAKEN``, ``REQUEST_ID_REUSED``.
        """
        ...

    async def purge(self, passage_id: str, request: Request) -> int:
        """Destroys a passage with its versions, and returns how many these were.

        Raises:
            NotFoundError: ``PASSAGE_NOT_FOUND``.
            AlreadyExistsError: ``REQUEST_ID_REUSED``.
        """
        ...

    async def versions(self, passage_id: str, limit: int, cursor: Cursor | None) -> VersionPage:
        """Returns a page of versions, newest first; those of deleted passages, too.

        Raises:
            NotFoundError: ``PASSAGE_NOT_FOUND``.
        """
        ...
