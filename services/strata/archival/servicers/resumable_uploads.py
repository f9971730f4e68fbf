"""An upload of passages that tells how far it is, and goes on after a break."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from hashlib import sha256

from strata.api.archival.v1 import passage_service_pb2 as pb
from strata.archival import convert
from strata.archival.domain.history import Progress
from strata.archival.domain.passages import Archive, NewPassage, Place, Request
from strata.archival.domain.store import PassageStore
from strata.archival.servicers.uploads import check_size
from strata.shared.errors import AlreadyExistsError, FieldViolation, Reason

_START = sha256(b"UploadPassages").hexdigest()


class ResumableUpload:
    """Stores the passages of one stream, a transaction per message.

    How far the upload is, is stored with its passages under the request id. A stream of the
    same id may leave out what is durable, or send it again; then it is compared, not stored.

    Args:
        store: Where to.
        read: Checks passages and counts their tokens.
        template: The archive to make for an agent that has none of its own.
        wake: Tells the indexer that something was committed.
    """

    def __init__(
        self,
        store: PassageStore,
        read: Callable[[Sequence[pb.NewPassage], str], Awaitable[list[NewPassage]]],
        template: Callable[[Place], Archive],
        wake: Callable[[], None],
    ) -> None:
        self._store = store
        self._read = read
        self._template = template
        self._wake = wake
        self._request = Request()
        self._state = Progress()
        self._position = 0
        # Of all passages up to the position; empty if some were left out.
        self._said = _START

    async def receive(
        self, messages: AsyncIterator[pb.UploadPassagesRequest]
    ) -> AsyncIterator[Progress]:
        """Stores what the stream brings; yields how far it is after each message and at the end.

        Raises:
            InvalidArgumentError: No passage came, or a wrong one.
            FailedPreconditionError: ``TOKEN_LIMIT_EXCEEDED``.
            NotFoundError: ``ARCHIVE_NOT_FOUND``, ``AGENT_NOT_FOUND``.
            AlreadyExistsError: ``REQUEST_ID_REUSED``.
        """
        place: Place | None = None
        async for message in messages:
            if place is None:
                place = await self._begin(message)
            check_size(message)
            self._skip(message.skip_count)
            fresh = self._pass_over(message.passages)
            if fresh:
                await self._store_next(place, fresh)
            yield self._state
        if place is None or not self._state.received:
            convert.refuse([FieldViolation("passages", "at least one must be sent")])
        # Who has sent less than is durable only wanted to know.
        if self._position >= self._state.received and not self._state.complete:
            self._state = await self._store.complete(self._request, self._state)
        yield self._state

    async def _begin(self, message: pb.UploadPassagesRequest) -> Place:
        place = convert.to_place(message.archive_id, message.agent_id)
        said = sha256(f"UploadPassages\0{place.archive_id}\0{place.agent_id}".encode())
        self._request = Request(convert.check_request_id(message.request_id), said.hexdigest())
        self._state = await self._store.progress(self._request)
        return place

    def _skip(self, count: int) -> None:
        if not count:
            return
        durable = self._state.received
        if not 0 <= count <= durable - self._position:
            told = f"must not pass over more than the {durable} passages that are durable"
            convert.refuse([FieldViolation("skip_count", told)])
        self._position += count
        self._said = self._state.said if self._position == durable else ""

    def _pass_over(self, passages: Sequence[pb.NewPassage]) -> Sequence[pb.NewPassage]:
        durable = self._state.received - self._position
        for passage in passages[: max(0, durable)]:
            self._note(passage)
        if durable > 0 and self._position == self._state.received:
            if self._said not in {"", self._state.said}:
                raise self._reused()
            self._said = self._state.said
        return passages[max(0, durable) :]

    async def _store_next(self, place: Place, passages: Sequence[pb.NewPassage]) -> None:
        if self._state.complete:
            raise self._reused()
        read = await self._read(passages, "passages")
        for passage in passages:
            self._note(passage)
        self._state = await self._store.upload(
            place, read, self._template(place), self._request, self._state, self._said
        )
        self._wake()

    def _note(self, passage: pb.NewPassage) -> None:
        if self._said:
            said = passage.SerializeToString(deterministic=True)
            self._said = sha256(self._said.encode() + said).hexdigest()
        self._position += 1

    def _reused(self) -> AlreadyExistsError:
        return AlreadyExistsError(
            f"The request_id {self._request.id!r} was used before for something else.",
            reason=Reason.REQUEST_ID_REUSED,
            metadata={"request_id": self._request.id},
        )
