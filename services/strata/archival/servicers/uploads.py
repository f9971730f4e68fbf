"""An upload of passages that reports its progress and can be resumed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import reduce
from hashlib import sha256

from strata.api.archival.v1 import passage_service_pb2 as pb
from strata.archival.convert import archives as convert
from strata.archival.domain.history import UploadProgress
from strata.archival.domain.passages import Archive, ArchiveRef, NewPassage
from strata.archival.domain.store import PassageStore
from strata.protocol.errors import FieldViolation, InvalidArgumentError, invalid_field
from strata.shared.idempotency.keys import RequestKey, check_request_id, request_id_reused

MAX_UPLOAD_BATCH = 1_000

_START = sha256(b"UploadPassages").hexdigest()


class PassageUpload:
    """Stores the passages of one stream, a transaction per message.

    The progress of the upload is stored with its passages, under the request id. A later stream
    with the same id may skip the durable passages or send them again. Repeated passages are
    compared by digest and not stored again.

    Args:
        store: Stores the passages.
        read: Validates passages, by their paths in the request, and counts their tokens.
        template: Makes the archive of an agent that has no archive of its own.
        wake: Wakes the indexer after a commit.
    """

    def __init__(
        self,
        store: PassageStore,
        read: Callable[[Mapping[str, pb.NewPassage]], Awaitable[list[NewPassage]]],
        template: Callable[[ArchiveRef], Archive],
        wake: Callable[[], None],
    ) -> None:
        self._store = store
        self._convert = read
        self._template = template
        self._wake = wake
        self._request = RequestKey()
        self._state = UploadProgress()
        self._position = 0
        # Digest of all passages up to the position; empty if some were skipped.
        self._digest = _START

    async def receive(
        self, messages: AsyncIterator[pb.UploadPassagesRequest]
    ) -> AsyncIterator[UploadProgress]:
        """Stores the passages of the stream; yields the progress after each message and at the end.

        Raises:
            InvalidArgumentError: The stream has no passage, or an invalid one.
            FailedPreconditionError: ``TOKEN_LIMIT_EXCEEDED``.
            NotFoundError: ``ARCHIVE_NOT_FOUND``, ``AGENT_NOT_FOUND``.
            AlreadyExistsError: ``REQUEST_ID_REUSED``.
        """
        archive_ref: ArchiveRef | None = None
        async for message in messages:
            if archive_ref is None:
                archive_ref = await self._begin(message)
            _check_size(message)
            self._skip(message.skip_count)
            await self._store_fresh(archive_ref, message.passages)
            yield self._state
        if archive_ref is None or not self._state.received:
            raise invalid_field("passages", "at least one must be sent")
        # A stream that ends before the durable position only requests the progress.
        if self._position >= self._state.received and not self._state.complete:
            self._state = await self._store.complete(self._request, self._state)
        yield self._state

    async def _begin(self, message: pb.UploadPassagesRequest) -> ArchiveRef:
        archive_ref = convert.to_place(message.archive_id, message.agent_id)
        digest = sha256(
            f"UploadPassages\0{archive_ref.archive_id}\0{archive_ref.agent_id}".encode()
        )
        self._request = RequestKey(check_request_id(message.request_id), digest.hexdigest())
        self._state = await self._store.progress(self._request)
        return archive_ref

    def _skip(self, count: int) -> None:
        if not count:
            return
        durable = self._state.received
        if not 0 <= count <= durable - self._position:
            following = durable - self._position
            problem = f"must be from 0 to {following}, the number of durable passages that follow"
            raise invalid_field("skip_count", problem)
        self._position += count
        self._digest = self._state.digest if self._position == durable else ""

    def _compare_repeated(self, passages: Sequence[pb.NewPassage]) -> Sequence[pb.NewPassage]:
        durable = self._state.received - self._position
        for passage in passages[: max(0, durable)]:
            self._note(passage)
        if durable > 0 and self._position == self._state.received:
            if self._digest not in {"", self._state.digest}:
                raise request_id_reused(self._request.id)
            self._digest = self._state.digest
        return passages[max(0, durable) :]

    async def _store_fresh(
        self, archive_ref: ArchiveRef, passages: Sequence[pb.NewPassage]
    ) -> None:
        """Compares the passages that are durable, and stores the others."""
        fresh = self._compare_repeated(passages)
        while fresh:
            if self._state.complete:
                raise request_id_reused(self._request.id)
            first = len(passages) - len(fresh)
            new_passages = await self._convert(
                {f"passages[{first + index}]": passage for index, passage in enumerate(fresh)}
            )
            digest = reduce(_digest_with, fresh, self._digest)
            self._state = await self._store.upload(
                archive_ref,
                new_passages,
                self._template(archive_ref),
                self._request,
                self._state,
                digest,
            )
            self._wake()
            # A concurrent stream with this id may have stored others, or some of them.
            fresh = self._compare_repeated(fresh)

    def _note(self, passage: pb.NewPassage) -> None:
        if self._digest:
            self._digest = _digest_with(self._digest, passage)
        self._position += 1


def _digest_with(digest: str, passage: pb.NewPassage) -> str:
    """Returns the digest of passages that are followed by another one."""
    data = passage.SerializeToString(deterministic=True)
    return sha256(digest.encode() + data).hexdigest()


def _check_size(message: pb.UploadPassagesRequest) -> None:
    if len(message.passages) > MAX_UPLOAD_BATCH:
        raise InvalidArgumentError(
            f"A message holds at most {MAX_UPLOAD_BATCH} passages.",
            violations=[FieldViolation("passages", f"at most {MAX_UPLOAD_BATCH}")],
        )
