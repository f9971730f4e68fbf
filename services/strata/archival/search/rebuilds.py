"""Rebuilds of indexes: of all passages, of one archive, and of the chunks of files."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from strata.archival.domain.chunks import split_key
from strata.archival.domain.passages import Passage
from strata.archival.search.index import AssignmentReader, PassageIndex, chunk_entries, entry_of
from strata.archival.store import PendingPassages
from strata.archival.store.contents import ChunkContents, PassageContents
from strata.archival.store.embedding_assignment import (
    EmbeddingAssignment,
    EmbeddingAssignments,
    own_model,
)
from strata.shared.search.indexing.generations import Serving
from strata.shared.search.indexing.text_index import TextIndex
from strata.shared.search.reindexing import FoundCounts, Phase, Reindex
from strata.shared.search.reindexing.check import StoredText
from strata.shared.search.reindexing.index_admin import finished, rolled_back
from strata.shared.search.reindexing.reindexer import Batch
from strata.shared.search.vectors import Where

_NONE_YET = ("", "")


class PassageTexts:
    """The passages of archives that follow the default, as `Contents`.

    Args:
        contents: Reads their keys.
        pending: Reads passages by id.
        assignments: Reads the models of archives.
    """

    def __init__(
        self, contents: PassageContents, pending: PendingPassages, assignments: AssignmentReader
    ) -> None:
        self._contents = contents
        self._pending = pending
        self._assignments = assignments

    async def count(self) -> int:
        """Returns the number of passages of all archives."""
        return await self._contents.count()

    async def batch(self, cursor: tuple[str, ...], limit: int) -> Batch | None:
        """See `Rebuildable.batch`."""
        project, passage_id = cursor or _NONE_YET
        keys = await self._contents.after((project, passage_id), limit)
        if not keys:
            return None
        project = keys[0][0]
        passages = await self._alive(project, [key[1] for key in keys])
        return _batch(project, passages, keys[-1], len(keys))

    async def changed(self, batch: Batch) -> list[str]:
        """See `Contents.changed`."""
        return await self._contents.changed(batch.project_id, batch.versions)

    async def texts(self, keys: Sequence[tuple[str, str]]) -> list[StoredText]:
        """See `Rebuildable.texts`."""
        texts = []
        for project, passage_id in keys:
            alive = await self._alive(project, [passage_id])
            texts += [StoredText(project, passage.id, passage.text) for passage in alive]
        return texts

    async def _alive(self, project: str, ids: Sequence[str]) -> list[Passage]:
        alive = [
            passage for passage in await self._pending.load(project, ids) if not passage.deleted
        ]
        assignments = await self._assignments.of(project, {passage.archive_id for passage in alive})
        return [
            passage
            for passage in alive
            if "" in assignments.get(passage.archive_id, EmbeddingAssignment()).written
        ]


class ChunkTexts:
    """The chunks of files, as `Contents`.

    Args:
        contents: Reads sets of chunks.
    """

    def __init__(self, contents: ChunkContents) -> None:
        self._contents = contents

    async def count(self) -> int:
        """Returns the number of chunks."""
        return await self._contents.count()

    async def batch(self, cursor: tuple[str, ...], limit: int) -> Batch | None:
        """See `Rebuildable.batch`. The cursor is project, set and ordinal."""
        project, set_id, ordinal = cursor or ("", "", "-1")
        key: tuple[str, str] | None = (project, set_id)
        after = int(ordinal)
        while key is not None:
            chunks = await self._contents.chunks(key, after, limit) if key[1] else None
            if chunks is not None:
                last = (*key, str(chunks.chunks[-1].ordinal))
                entries = chunk_entries(chunks)
                return Batch(key[0], entries, {}, last, len(entries))
            key, after = await self._contents.set_after(key), -1
        return None

    async def changed(self, batch: Batch) -> list[str]:
        """See `Contents.changed`; chunks never change, but their set can be replaced."""
        there = await self._contents.serves((batch.cursor[0], batch.cursor[1]))
        return [] if there else [entry.id for entry in batch.entries]

    async def texts(self, keys: Sequence[tuple[str, str]]) -> list[StoredText]:
        """See `Rebuildable.texts`."""
        texts = []
        for project, name in keys:
            set_id, ordinal = split_key(name)
            text = await self._contents.text((project, set_id), ordinal)
            if text is not None:
                texts.append(StoredText(project, name, text))
        return texts


class ArchiveRebuild:
    """One archive, as `Rebuildable`: it gets another model, or new vectors of the same model.

    Args:
        index: The index of passages.
        contents: Reads their keys.
        pending: Reads passages by id.
        assignments: Reads and changes the models of archives.
    """

    def __init__(
        self,
        index: PassageIndex,
        contents: PassageContents,
        pending: PendingPassages,
        assignments: EmbeddingAssignments,
    ) -> None:
        self._index = index
        self._contents = contents
        self._pending = pending
        self._assignments = assignments

    def place(self, generation: Serving) -> TextIndex:
        """See `Rebuildable.place`."""
        return self._index.own_texts if own_model(generation) else self._index.texts

    async def source(self, job: Reindex) -> Serving:
        """See `Rebuildable.source`; the default may have been rebuilt since the start."""
        if own_model(job.source):
            return job.source
        return await self._index.texts.routes.serving(fresh=True)

    async def batch(self, job: Reindex, limit: int) -> Batch | None:
        """See `Rebuildable.batch`."""
        if model := own_model(job.target):
            await self._index.open_own(model)
        project = job.project_id
        keys = await self._contents.of_archive(project, job.archive_id, job.progress.cursor, limit)
        if not keys:
            return None
        passages = await self._alive(project, [key[1] for key in keys])
        return _batch(project, passages, keys[-1], len(keys))

    async def settle(self, job: Reindex, batch: Batch) -> None:
        """See `Rebuildable.settle`."""
        if changed_ids := await self._contents.changed(batch.project_id, batch.versions):
            await self.place(job.target).remove(batch.project_id, changed_ids, within=[job.target])

    async def texts(self, job: Reindex, keys: Sequence[tuple[str, str]]) -> list[StoredText]:
        """See `Rebuildable.texts`."""
        ids = [passage_id for _, passage_id in keys]
        passages = await self._alive(job.project_id, ids)
        return [StoredText(job.project_id, passage.id, passage.text) for passage in passages]

    def where(self, job: Reindex) -> Where:
        """See `Rebuildable.where`."""
        return Where(eq={"archive_id": job.archive_id})

    async def move(self, job: Reindex, phase: Phase, note: str, share: FoundCounts) -> Reindex:
        """See `Rebuildable.move`."""
        return await self._assignments.move(job, phase, note, share)

    async def clean(self, job: Reindex) -> None:
        """See `Rebuildable.clean`."""
        if job.source == job.target:
            return
        left = job.other
        within = None if not own_model(left) else [left]
        await self.place(left).remove_where(job.project_id, self.where(job), within=within)

    async def _alive(self, project: str, ids: Sequence[str]) -> list[Passage]:
        return [
            passage for passage in await self._pending.load(project, ids) if not passage.deleted
        ]


class ArchiveModels:
    """Changes of archives' embedding models, for users.

    Args:
        assignments: The models of archives.
        rebuild: Rebuilds archives.
        index: The index of passages.
        wake: Wakes the reindexer.
    """

    def __init__(
        self,
        assignments: EmbeddingAssignments,
        rebuild: ArchiveRebuild,
        index: PassageIndex,
        wake: Callable[[], None],
    ) -> None:
        self._assignments = assignments
        self._rebuild = rebuild
        self._index = index
        self._wake = wake

    async def start(self, archive_id: str, model: str, request_id: str) -> Reindex:
        """Starts the rebuild of an archive, with another model if one is named.

        Raises:
            InvalidArgumentError: There is no such model.
            NotFoundError: ``ARCHIVE_NOT_FOUND``.
            FailedPreconditionError: ``IN_USE``.
            AlreadyExistsError: ``REQUEST_ID_REUSED``.
        """
        model_id = self._index.models.known(model).id if model else ""
        default = await self._index.texts.routes.serving(fresh=True)
        job = await self._assignments.start(
            archive_id, model_id, request_id, self._index.generation_of, default
        )
        self._wake()
        return job

    async def latest(self, archive_id: str) -> Reindex:
        """Returns the newest rebuild of an archive.

        Raises:
            NotFoundError: ``ARCHIVE_NOT_FOUND``, ``REINDEX_NOT_FOUND``.
        """
        return await self._assignments.latest(archive_id)

    async def finish(self, archive_id: str) -> Reindex:
        """See `finished`.

        Raises:
            NotFoundError: As for `latest`.
        """
        moved = await finished(self._rebuild, await self._assignments.latest(archive_id))
        self._wake()
        return moved

    async def roll_back(self, archive_id: str) -> Reindex:
        """See `rolled_back`.

        Raises:
            NotFoundError: As for `latest`.
        """
        moved = await rolled_back(self._rebuild, await self._assignments.latest(archive_id))
        self._wake()
        return moved


def _batch(
    project: str, passages: Sequence[Passage], last: tuple[str, str], read_count: int
) -> Batch:
    entries = [entry_of(passage) for passage in passages]
    versions = {passage.id: passage.revision for passage in passages}
    return Batch(project, entries, versions, last, read_count)
