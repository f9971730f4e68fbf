"""What archival memory needs of its stores and its index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from strata.archival.domain.passages import (
    AgentStats,
    Archive,
    ArchiveChange,
    ArchivePage,
    Cursor,
    Filter,
    Found,
    Inserted,
    NewPassage,
    Page,
    Passage,
    Place,
    Request,
    Search,
    Uploaded,
)

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
    """Passages of the current project; each method is one transaction."""

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

    async def get(self, passage_id: str) -> Passage:
        """Returns a passage.

        Raises:
            NotFoundError: ``PASSAGE_NOT_FOUND``.
        """
        ...

    async def update(
        self,
        passage_id: str,
        text: tuple[str, int] | None,
        tags: tuple[str, ...] | None,
        expected_revision: int,
        now: datetime,
        request_id: str = "",
    ) -> Passage:
        """Changes text (with its tokens) or tags; the last request repeated changes nothing.

        Raises:
            NotFoundError: ``PASSAGE_NOT_FOUND``.
            AbortedError: ``REVISION_MISMATCH``.
        """
        ...

    async def delete(self, passage_id: str, now: datetime) -> None:
        """Deletes a passage; repeating it is success.

        Raises:
            NotFoundError: ``PASSAGE_NOT_FOUND``.
        """
        ...

    async def page(
        self,
        archive_id: str,
        agent_id: str,
        tags: Sequence[str],
        limit: int,
        cursor: Cursor | None,
    ) -> Page:
        """Returns a page, oldest first."""
        ...

    async def archive_ids(self, agent_id: str) -> list[str]:
        """Returns the archives of an agent."""
        ...

    async def matching(
        self, ids: Sequence[str], words: str, within: Filter, limit: int, *, all_words: bool
    ) -> tuple[list[Passage], list[tuple[Passage, float]]]:
        """Returns, of the conditions' passages, those with the ids, and those found by words.

        The second list is ranked, each with its score. With ``all_words`` False it holds
        only passages that are not in the index yet.
        """
        ...


class SearchIndex(Protocol):
    """Passages by meaning and words, in one engine."""

    async def search(self, project_id: str, search: Search, within: Filter) -> list[Found]:
        """Returns ids and ranks, best first; the passages in it are filled in by the caller."""
        ...
