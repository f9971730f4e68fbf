"""An upload of passages: a stream of messages with one response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from hashlib import sha256

from strata.api.archival.v1 import passage_service_pb2 as pb
from strata.archival.convert import archives as convert
from strata.archival.domain.passages import Archive, ArchiveRef, NewPassage, UploadCounts
from strata.archival.domain.store import PassageStore
from strata.protocol.errors import (
    FieldViolation,
    InvalidArgumentError,
    UnavailableError,
    invalid_field,
)
from strata.shared.idempotency.keys import RequestKey, check_request_id

MAX_UPLOAD_BATCH = 1_000


class PassageUpload:
    """Stores the passages of one stream.

    A message is stored while the next one is read, so that the last one can be stored in
    one transaction with the response. If the request has a stored response already, the
    stream is only read and compared with the first one by digest.

    Args:
        store: Stores the passages.
        read: Validates passages and counts their tokens.
        template: Makes the archive for an agent that has none of its own.
        wake: Wakes the indexer after a commit.
    """

    def __init__(
        self,
        store: PassageStore,
        read: Callable[[Sequence[pb.NewPassage], str], Awaitable[list[NewPassage]]],
        template: Callable[[ArchiveRef], Archive],
        wake: Callable[[], None],
    ) -> None:
        self._store = store
        self._read = read
        self._template = template
        self._wake = wake
        self._digest = sha256(b"InsertPassages")
        self._request_id = ""
        self._place: ArchiveRef | None = None
        self._repeated = False
        self._counts = UploadCounts()

    async def receive(self, messages: AsyncIterator[pb.InsertPassagesRequest]) -> UploadCounts:
        """Stores the passages of the stream; returns the counts.

        Raises:
            InvalidArgumentError: The stream has no passage, or an invalid one.
            FailedPreconditionError: ``TOKEN_LIMIT_EXCEEDED``.
            NotFoundError: ``ARCHIVE_NOT_FOUND``, ``AGENT_NOT_FOUND``.
            AlreadyExistsError: ``REQUEST_ID_REUSED``.
        """
        held: list[NewPassage] = []
        empty = True
        async for message in messages:
            if self._place is None:
                self._place = await self._begin(message)
            check_size(message)
            empty = empty and not message.passages
            self._note(message)
            if self._repeated or not message.passages:
                continue
            storing = asyncio.create_task(self._store_held(self._place, held))
            try:
                passages = await self._read(message.passages, "passages")
            finally:
                await storing
            held = passages
        if self._place is None or empty:
            raise invalid_field("passages", "at least one must be sent")
        assert self._place is not None
        return await self._finish(self._place, held)

    async def _begin(self, message: pb.InsertPassagesRequest) -> ArchiveRef:
        place = convert.to_place(message.archive_id, message.agent_id)
        self._request_id = check_request_id(message.request_id)
        self._repeated = await self._store.is_answered(self._request_id)
        self._digest.update(f"{place.archive_id}\0{place.agent_id}\0".encode())
        return place

    def _note(self, message: pb.InsertPassagesRequest) -> None:
        # The digest does not depend on how the passages are split into messages.
        for passage in message.passages:
            data = passage.SerializeToString(deterministic=True)
            self._digest.update(len(data).to_bytes(8) + data)

    async def _store_held(self, place: ArchiveRef, held: list[NewPassage]) -> None:
        if held:
            stored = await self._store.insert(place, held, self._template(place), "")
            self._counts = self._counts.plus(stored)
            self._wake()

    async def _finish(self, place: ArchiveRef, held: list[NewPassage]) -> UploadCounts:
        request = RequestKey(self._request_id, self._digest.hexdigest())
        if self._repeated:
            known = await self._store.upload_answer(request)
            if known is None:
                # The stored response has expired since the stream began; nothing was stored.
                raise UnavailableError("Send the upload again.", retry_after=0.0)
            return known
        counts = await self._store.finish_upload(
            place, held, self._template(place), request, self._counts
        )
        self._wake()
        return counts


def check_size(message: pb.InsertPassagesRequest | pb.UploadPassagesRequest) -> None:
    """Raises if a message has too many passages.

    Raises:
        InvalidArgumentError: There are more than `MAX_UPLOAD_BATCH`.
    """
    if len(message.passages) > MAX_UPLOAD_BATCH:
        raise InvalidArgumentError(
            f"A message holds at most {MAX_UPLOAD_BATCH} passages.",
            violations=[FieldViolation("passages", f"at most {MAX_UPLOAD_BATCH}")],
        )
