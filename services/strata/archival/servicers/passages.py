"""Serves passages: stores, changes, lists and searches them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from strata.api.archival.v1 import passage_service_pb2 as pb
from strata.api.archival.v1 import passage_service_pb2_grpc as pb_grpc
from strata.archival.convert import archives as convert
from strata.archival.convert import passages as convert_passages
from strata.archival.convert import search as convert_search
from strata.archival.convert.passages import PassageReader
from strata.archival.domain.passages import Archive, ArchiveRef, NewPassage, Passage
from strata.archival.domain.store import ArchiveStore, PassageHistory, PassageStore
from strata.archival.search.passage_search import PassageSearch
from strata.archival.servicers.uploads import PassageUpload
from strata.shared.clock import Clock
from strata.shared.context import require_caller
from strata.shared.db import Page, decode_page_token, page_limit
from strata.shared.ids import check_id
from strata.shared.search.embedding import Embedder
from strata.shared.text_work import run_text_work

Context = Any
MAX_PAGE_SIZE = 500
_TIME_AND_ID = (datetime, str)


class PassageServicer(pb_grpc.PassageServiceServicer):
    """Stores and searches passages.

    Args:
        passages: Stores the passages.
        history: Changes them.
        archives: Reads the tags of archives.
        search: Searches passages.
        embedder: Counts tokens; the model of agents' own archives.
        clock: The time of changes.
        token_limit: Maximum of tokens in one passage.
        wake: Wakes the indexer after a commit.
    """

    def __init__(
        self,
        passages: PassageStore,
        history: PassageHistory,
        archives: ArchiveStore,
        search: PassageSearch,
        embedder: Embedder,
        clock: Clock,
        *,
        token_limit: int,
        wake: Callable[[], None],
    ) -> None:
        self._passages = passages
        self._history = history
        self._archives = archives
        self._search = search
        self._embedder = embedder
        self._clock = clock
        self._reader = PassageReader(embedder.limit_tokens, token_limit)
        self._wake = wake

    async def InsertPassage(
        self, request: pb.InsertPassageRequest, context: Context
    ) -> pb.InsertPassageResponse:
        """Stores one passage."""
        archive_ref = convert.to_place(request.archive_id, request.agent_id)
        key = convert.to_request(request)
        passages = await self._to_passages({"passage": request.passage})
        (inserted,) = await self._passages.insert(
            archive_ref, passages, self._template(archive_ref), key
        )
        if inserted.duplicate:
            inserted = replace(
                inserted, passage=await self._with_tags(inserted.passage, request.passage)
            )
        self._wake()
        return convert_passages.inserted_to_proto(inserted)

    async def _with_tags(self, passage: Passage, new_passage: pb.NewPassage) -> Passage:
        """Returns a stored passage after it got the tags with which its text was sent again."""
        tags = {*passage.tags, *new_passage.tags}
        if len(tags) == len(passage.tags):
            return passage
        convert_passages.check_added_tags(tags)
        author = convert_passages.to_author_of_tags(new_passage)
        return await self._history.add_tags(passage.id, new_passage.tags, author, self._clock.now())

    async def UploadPassages(
        self, request_iterator: AsyncIterator[pb.UploadPassagesRequest], context: Context
    ) -> AsyncIterator[pb.UploadPassagesResponse]:
        """Stores many passages, a transaction per message; sends the progress after each."""
        upload = PassageUpload(self._passages, self._to_passages, self._template, self._wake)
        async for progress in upload.receive(request_iterator):
            yield convert_passages.progress_to_proto(progress)

    async def GetPassage(
        self, request: pb.GetPassageRequest, context: Context
    ) -> pb.GetPassageResponse:
        """Returns a passage."""
        check_id(request.passage_id, "passage", field="passage_id")
        passage = await self._passages.get(request.passage_id, show_deleted=request.show_deleted)
        return pb.GetPassageResponse(passage=convert.passage_to_proto(passage))

    async def UpdatePassage(
        self, request: pb.UpdatePassageRequest, context: Context
    ) -> pb.UpdatePassageResponse:
        """Changes text, tags or metadata."""
        convert_passages.check_change(request)
        text = None
        if request.HasField("text"):
            text = await run_text_work([request.text], lambda: self._reader.text(request.text))
        change = convert_passages.to_change(request, text)
        passage = await self._history.update(request.passage_id, change, self._clock.now())
        self._wake()
        return pb.UpdatePassageResponse(passage=convert.passage_to_proto(passage))

    async def DeletePassage(
        self, request: pb.DeletePassageRequest, context: Context
    ) -> pb.DeletePassageResponse:
        """Hides a passage."""
        author = convert_passages.to_deleter(request)
        await self._history.delete(request.passage_id, author, self._clock.now())
        self._wake()
        return pb.DeletePassageResponse()

    async def RestorePassage(
        self, request: pb.RestorePassageRequest, context: Context
    ) -> pb.RestorePassageResponse:
        """Restores a deleted passage or a version."""
        change = convert_passages.to_restoration(request)
        passage = await self._history.restore(
            request.passage_id, request.revision, change, self._clock.now()
        )
        self._wake()
        return pb.RestorePassageResponse(passage=convert.passage_to_proto(passage))

    async def PurgePassage(
        self, request: pb.PurgePassageRequest, context: Context
    ) -> pb.PurgePassageResponse:
        """Destroys a passage."""
        check_id(request.passage_id, "passage", field="passage_id")
        purged = await self._history.purge(request.passage_id, convert.to_request(request))
        self._wake()
        return pb.PurgePassageResponse(purged_versions=purged)

    async def ListPassageVersions(
        self, request: pb.ListPassageVersionsRequest, context: Context
    ) -> pb.ListPassageVersionsResponse:
        """Lists versions, newest first."""
        check_id(request.passage_id, "passage", field="passage_id")
        scope = f"ListPassageVersions {request.passage_id}"
        limit = page_limit(request.page_size, maximum=MAX_PAGE_SIZE)
        cursor = decode_page_token(scope, request.page_token, (int,))
        versions = await self._history.versions(request.passage_id, limit + 1, cursor)
        page = Page.cut(versions, limit, scope, lambda version: (version.revision,))
        return pb.ListPassageVersionsResponse(
            versions=[convert_passages.version_to_proto(version) for version in page.rows],
            next_page_token=page.next_page_token,
        )

    async def ListPassages(
        self, request: pb.ListPassagesRequest, context: Context
    ) -> pb.ListPassagesResponse:
        """Lists passages, oldest first."""
        archive_ref, within = convert_passages.to_listing(request)
        scope = f"ListPassages {archive_ref} {within}"
        cursor = decode_page_token(scope, request.page_token, _TIME_AND_ID)
        archives = [archive_ref.archive_id]
        if archive_ref.agent_id:
            archives = await self._passages.archive_ids(archive_ref.agent_id)
        limit = page_limit(request.page_size, maximum=MAX_PAGE_SIZE)
        stored_page = await self._passages.page(
            replace(within, archive_ids=tuple(archives)), limit + 1, cursor
        )
        if archive_ref.archive_id and not stored_page and cursor is None:
            await self._passages.check_archives(archives)
        page = Page.cut(
            stored_page, limit, scope, lambda passage: (passage.create_time, passage.id)
        )
        # In a thread, since converting a page of 500 passages would block the event loop.
        passages = await asyncio.to_thread(convert.passages_to_proto, page.rows)
        return pb.ListPassagesResponse(passages=passages, next_page_token=page.next_page_token)

    async def SearchPassages(
        self, request: pb.SearchPassagesRequest, context: Context
    ) -> pb.SearchPassagesResponse:
        """Searches passages by meaning and words."""
        answer = await self._search.search(convert_search.to_search(request))
        return convert_search.answer_to_proto(answer)

    async def ListTags(self, request: pb.ListTagsRequest, context: Context) -> pb.ListTagsResponse:
        """Lists tags with counts."""
        archive_ref = convert.to_place(request.archive_id, request.agent_id)
        tags = await self._archives.tags(archive_ref.archive_id, archive_ref.agent_id)
        return pb.ListTagsResponse(
            tags=[pb.TagCount(tag=tag, count=count) for tag, count in tags.items()]
        )

    async def _to_passages(self, wires: Mapping[str, pb.NewPassage]) -> list[NewPassage]:
        now, principal = self._clock.now(), require_caller().principal
        return await run_text_work(
            (wire.text for wire in wires.values()),
            lambda: self._reader.passages(wires, now, principal),
        )

    def _template(self, archive_ref: ArchiveRef) -> Archive:
        return convert.own_archive(
            archive_ref.agent_id, self._embedder.model_id, self._embedder.dim, self._clock.now()
        )
