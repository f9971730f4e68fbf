"""Passages: storing, changing, listing and searching them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from typing import Any

from strata.api.archival.v1 import passage_service_pb2 as pb
from strata.api.archival.v1 import passage_service_pb2_grpc as pb_grpc
from strata.archival import convert
from strata.archival.domain.passages import Archive, Inserted, NewPassage, Place
from strata.archival.domain.store import ArchiveStore, PassageStore
from strata.archival.search import PassageSearch
from strata.archival.servicers.uploads import PassageUpload
from strata.shared.clock import Clock
from strata.shared.db import decode_page_token, encode_page_token, page_limit
from strata.shared.embedding import Embedder
from strata.shared.errors import InvalidArgumentError
from strata.shared.ids import check_id

Context = Any
MAX_PAGE_SIZE = 500
_TIME_AND_ID = (datetime, str)


class PassageServicer(pb_grpc.PassageServiceServicer):
    """Keeps and finds passages.

    Args:
        passages: The passages.
        archives: The archives, for their tags.
        search: Finds passages.
        embedder: Counts tokens and names the model of new archives.
        clock: Stamps what is stored.
        token_limit: Most tokens of one passage.
        wake: Tells the indexer that something was committed.
    """

    def __init__(
        self,
        passages: PassageStore,
        archives: ArchiveStore,
        search: PassageSearch,
        embedder: Embedder,
        clock: Clock,
        *,
        token_limit: int,
        wake: Callable[[], None],
    ) -> None:
        self._passages = passages
        self._archives = archives
        self._search = search
        self._embedder = embedder
        self._clock = clock
        self._token_limit = token_limit
        self._wake = wake

    async def InsertPassage(
        self, request: pb.InsertPassageRequest, context: Context
    ) -> pb.InsertPassageResponse:
        """Stores one passage."""
        place = convert.to_place(request.archive_id, request.agent_id)
        request_id = convert.check_request_id(request.request_id)
        passages = await self._to_passages([request.passage], "passage")
        stored = (await self._insert(place, passages, request_id))[0]
        return pb.InsertPassageResponse(
            passage=convert.passage_to_proto(stored.passage), duplicate=stored.duplicate
        )

    async def InsertPassages(
        self, request_iterator: AsyncIterator[pb.InsertPassagesRequest], context: Context
    ) -> pb.InsertPassagesResponse:
        """Stores many passages, a transaction per message.

        The same text is stored once, so that a broken upload may be sent again whole.
        """
        upload = PassageUpload(self._passages, self._to_passages, self._template, self._wake)
        stored = await upload.receive(request_iterator)
        return pb.InsertPassagesResponse(
            inserted_count=stored.inserted, duplicate_count=stored.duplicates
        )

    async def GetPassage(
        self, request: pb.GetPassageRequest, context: Context
    ) -> pb.GetPassageResponse:
        """Returns a passage."""
        check_id(request.passage_id, "passage", field="passage_id")
        passage = await self._passages.get(request.passage_id)
        return pb.GetPassageResponse(passage=convert.passage_to_proto(passage))

    async def UpdatePassage(
        self, request: pb.UpdatePassageRequest, context: Context
    ) -> pb.UpdatePassageResponse:
        """Changes text or tags."""
        check_id(request.passage_id, "passage", field="passage_id")
        violations = convert.tag_violations("tags", request.tags)
        if request.HasField("text"):
            violations += convert.text_violations("text", request.text)
        if violations:
            raise InvalidArgumentError("The passage cannot be changed.", violations=violations)
        text = None
        if request.HasField("text"):
            count = self._embedder.count_tokens
            tokens = convert.checked_tokens(request.text, count, self._token_limit)
            text = (request.text, tokens)
        passage = await self._passages.update(
            request.passage_id,
            text,
            tuple(sorted(set(request.tags))) if request.set_tags else None,
            request.expected_revision,
            self._clock.now(),
            convert.check_request_id(request.request_id),
        )
        self._wake()
        return pb.UpdatePassageResponse(passage=convert.passage_to_proto(passage))

    async def DeletePassage(
        self, request: pb.DeletePassageRequest, context: Context
    ) -> pb.DeletePassageResponse:
        """Deletes a passage."""
        check_id(request.passage_id, "passage", field="passage_id")
        await self._passages.delete(request.passage_id, self._clock.now())
        self._wake()
        return pb.DeletePassageResponse()

    async def ListPassages(
        self, request: pb.ListPassagesRequest, context: Context
    ) -> pb.ListPassagesResponse:
        """Lists passages, oldest first."""
        place = convert.to_place(request.archive_id, request.agent_id)
        tags = convert.check_tags(request.tags)
        scope = f"ListPassages {place} {sorted(tags)}"
        page = await self._passages.page(
            place.archive_id,
            place.agent_id,
            tags,
            page_limit(request.page_size, maximum=MAX_PAGE_SIZE),
            decode_page_token(scope, request.page_token, _TIME_AND_ID),
        )
        return pb.ListPassagesResponse(
            passages=[convert.passage_to_proto(passage) for passage in page.passages],
            next_page_token=encode_page_token(scope, page.next_cursor) if page.next_cursor else "",
        )

    async def SearchPassages(
        self, request: pb.SearchPassagesRequest, context: Context
    ) -> pb.SearchPassagesResponse:
        """Searches passages by meaning and words."""
        found = await self._search.search(convert.to_search(request))
        return pb.SearchPassagesResponse(
            hits=[convert.found_to_proto(item, request.explain) for item in found]
        )

    async def ListTags(self, request: pb.ListTagsRequest, context: Context) -> pb.ListTagsResponse:
        """Lists tags with counts."""
        place = convert.to_place(request.archive_id, request.agent_id)
        tags = await self._archives.tags(place.archive_id, place.agent_id)
        return pb.ListTagsResponse(
            tags=[pb.TagCount(tag=tag, count=count) for tag, count in tags.items()]
        )

    async def _to_passages(self, wires: Sequence[pb.NewPassage], field: str) -> list[NewPassage]:
        # Counting the tokens of a whole batch would hold up the event loop.
        return await asyncio.to_thread(
            convert.to_passages,
            wires,
            field,
            self._embedder.count_tokens,
            self._token_limit,
            self._clock.now(),
        )

    async def _insert(
        self, place: Place, passages: list[NewPassage], request_id: str
    ) -> list[Inserted]:
        template = self._template(place)
        stored = await self._passages.insert(place, passages, template, request_id)
        self._wake()
        return stored

    def _template(self, place: Place) -> Archive:
        return convert.own_archive(
            place.agent_id, self._embedder.model_id, self._embedder.dim, self._clock.now()
        )
