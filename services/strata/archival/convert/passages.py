"""Converts new passages, changes, versions and upload progress, and validates requests."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from strata.api.archival.v1 import passage_service_pb2 as pb
from strata.archival.convert.archives import (
    MAX_TAGS,
    check_new_tags,
    check_short_text,
    check_tags,
    check_text,
    checked_tokens,
    origin_to_proto,
    passage_to_proto,
    to_place,
    to_request,
)
from strata.archival.domain.history import Author, PassageChange, PassageVersion, UploadProgress
from strata.archival.domain.near_duplicates import signature_of
from strata.archival.domain.passages import (
    ArchiveRef,
    Filter,
    InsertedPassage,
    NewPassage,
    NewText,
    Origin,
    SuppliedVector,
    TagMatch,
)
from strata.shared.checks import Checks
from strata.shared.context import require_caller
from strata.shared.convert.messages import labels_to_proto, taint_from_proto
from strata.shared.ids import new_id

MAX_TOOL_CALL_CHARS = 256
MAX_REASON_CHARS = 2_000
MAX_METADATA = 64
MAX_METADATA_CHARS = 10_000
MAX_DIMENSION = 16_384

_ORIGIN_IDS = {"agent_id": "agent", "run_id": "run", "message_id": "message", "file_id": "file"}


MAX_PASSAGE_TOKENS = 8192
"""Maximum number of tokens of a passage or of a chunk of a file, which is the limit of endpoints.

Either may have at most 16 bytes for each of these tokens. A word that the embedding model does not
know has a token for every three bytes.
"""


class PassageReader:
    """Validates new passages, and computes the tokens and signatures of their texts.

    Args:
        count_tokens: See `Embedder.limit_tokens`.
        token_limit: Maximum of tokens in one passage.
    """

    def __init__(self, count_tokens: Callable[[str], int], token_limit: int) -> None:
        self._count_tokens = count_tokens
        self._token_limit = token_limit

    def text(self, text: str) -> NewText:
        """Returns a text to store, with its tokens and signature.

        Raises:
            FailedPreconditionError: ``TOKEN_LIMIT_EXCEEDED``.
        """
        tokens = checked_tokens(text, self._count_tokens, self._token_limit)
        return NewText(text, tokens, signature_of(text))

    def passages(
        self, wires: Mapping[str, pb.NewPassage], now: datetime, principal: str
    ) -> list[NewPassage]:
        """Returns passages to store; CPU-bound, so call it in a thread for many passages.

        Args:
            wires: The passages as protos, by their paths in the request.
            now: The time of storing.
            principal: The principal of the request.

        Raises:
            InvalidArgumentError: A text is blank, or tags, metadata, origin, time or vector
                are wrong.
            FailedPreconditionError: ``TOKEN_LIMIT_EXCEEDED``.
        """
        checks = Checks()
        for path, wire in wires.items():
            _check_passage(checks, path, wire)
        checks.done()
        return [self._passage(path, wire, now, principal) for path, wire in wires.items()]

    def _passage(self, path: str, wire: pb.NewPassage, now: datetime, principal: str) -> NewPassage:
        dated = wire.HasField("create_time")
        return NewPassage(
            id=new_id("passage"),
            content=self.text(wire.text),
            create_time=wire.create_time.ToDatetime(tzinfo=UTC) if dated else now,
            store_time=now,
            tags=_tags(wire.tags),
            metadata=dict(wire.metadata),
            origin=_to_origin(wire.origin),
            principal=principal,
            vector=_to_vector(wire),
            field=path,
        )


def _check_passage(checks: Checks, path: str, wire: pb.NewPassage) -> None:
    check_text(checks, wire.text, f"{path}.text")
    check_new_tags(checks, wire.tags, f"{path}.tags")
    _check_metadata(checks, wire.metadata, f"{path}.metadata")
    _check_origin(checks, wire.origin, f"{path}.origin")
    _check_vector(checks, path, wire)
    checks.time(wire.create_time, f"{path}.create_time")


def to_change(request: pb.UpdatePassageRequest, text: NewText | None) -> PassageChange:
    """Returns a change of a passage.

    Args:
        request: The request, checked by `check_change`.
        text: Its text; None if it does not change the text.
    """
    return PassageChange(
        author=_to_author(request.origin, request.reason),
        request=to_request(request),
        expected_revision=request.expected_revision,
        text=text,
        tags=_tags(request.tags) if request.set_tags else None,
        metadata=dict(request.metadata) if request.set_metadata else None,
    )


def check_added_tags(tags: Collection[str]) -> None:
    """Checks the number of tags that a stored passage has after tags are added.

    Raises:
        InvalidArgumentError: There are too many.
    """
    checks = Checks()
    if len(tags) > MAX_TAGS:
        checks.fail(
            "passage.tags",
            f"and those of the stored passage with the same text must not be more than {MAX_TAGS}",
        )
    checks.done()


def to_author_of_tags(passage: pb.NewPassage) -> Author:
    """Returns the author of tags that are added because a text was sent again."""
    return _to_author(passage.origin, "The same text was stored again with further tags.")


def check_change(request: pb.UpdatePassageRequest) -> None:
    """Validates a change, without counting tokens.

    Raises:
        InvalidArgumentError: A value is wrong.
    """
    checks = Checks()
    checks.id(request.passage_id, "passage", "passage_id")
    check_new_tags(checks, request.tags, "tags")
    _check_metadata(checks, request.metadata, "metadata")
    # Otherwise a caller that forgets the flag believes that they were stored.
    checks.unless(
        request.set_tags or not request.tags, "set_tags", "must be true if there are tags"
    )
    checks.unless(
        request.set_metadata or not request.metadata,
        "set_metadata",
        "must be true if there is metadata",
    )
    checks.not_negative(request.expected_revision, "expected_revision")
    _check_author(checks, request.origin, request.reason)
    if request.HasField("text"):
        check_text(checks, request.text, "text")
    checks.done()


def to_restoration(request: pb.RestorePassageRequest) -> PassageChange:
    """Returns author, idempotency key and expected revision of a RestorePassage request.

    Raises:
        InvalidArgumentError: A value is wrong.
    """
    checks = Checks()
    checks.id(request.passage_id, "passage", "passage_id")
    _check_author(checks, request.origin, request.reason)
    checks.not_negative(request.revision, "revision")
    checks.not_negative(request.expected_revision, "expected_revision")
    checks.done()
    author = _to_author(request.origin, request.reason)
    return PassageChange(author, to_request(request), request.expected_revision)


def to_deleter(request: pb.DeletePassageRequest) -> Author:
    """Returns the author of a DeletePassage request.

    Raises:
        InvalidArgumentError: A value is wrong.
    """
    checks = Checks()
    checks.id(request.passage_id, "passage", "passage_id")
    _check_author(checks, request.origin, request.reason)
    checks.done()
    return _to_author(request.origin, request.reason)


def to_listing(request: pb.ListPassagesRequest) -> tuple[ArchiveRef, Filter]:
    """Returns archive and filter of a ListPassages request; the caller sets the filter's archives.

    Raises:
        InvalidArgumentError: A value is wrong.
    """
    archive_ref = to_place(request.archive_id, request.agent_id)
    checks = Checks()
    check_tags(checks, request.tags, "tags")
    start = checks.optional_time(request, "start_time")
    end = checks.optional_time(request, "end_time")
    checks.time_range(start, end)
    checks.id(request.run_id, "run", "run_id", optional=True)
    checks.id(request.message_id, "message", "message_id", optional=True)
    checks.done()
    within = Filter(
        archive_ids=(),
        tags=_tags(request.tags),
        tag_match=TagMatch.ALL,
        start_time=start,
        end_time=end,
        run_id=request.run_id,
        message_id=request.message_id,
        show_deleted=request.show_deleted,
    )
    return archive_ref, within


def inserted_to_proto(inserted: InsertedPassage) -> pb.InsertPassageResponse:
    """Returns a stored passage and its near-duplicates as a response."""
    near = inserted.passage.near_duplicate_ids
    return pb.InsertPassageResponse(
        passage=passage_to_proto(inserted.passage),
        duplicate=inserted.duplicate,
        near_duplicate_ids=near,
        near_duplicates=[
            pb.NearDuplicate(passage_id=passage_id, text=text, taint=labels_to_proto(taint))
            for passage_id, text, taint in zip(
                near, inserted.near_texts, inserted.near_taints, strict=False
            )
        ],
    )


def version_to_proto(version: PassageVersion) -> pb.PassageVersion:
    """Returns a version as a proto."""
    wire = pb.PassageVersion(
        passage_id=version.passage_id,
        revision=version.revision,
        operation=version.operation,
        text=version.text,
        tags=version.tags,
        metadata=version.metadata,
        token_count=version.token_count,
        origin=origin_to_proto(version.author.origin),
        principal=version.author.principal,
        reason=version.author.reason,
    )
    wire.create_time.FromDatetime(version.create_time)
    return wire


def progress_to_proto(progress: UploadProgress) -> pb.UploadPassagesResponse:
    """Returns the progress of an upload as a response."""
    return pb.UploadPassagesResponse(
        received_count=progress.received,
        inserted_count=progress.inserted,
        duplicate_count=progress.duplicates,
        near_duplicate_count=progress.near_duplicates,
        complete=progress.complete,
    )


def _tags(tags: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(tags)))


def _to_origin(wire: pb.PassageOrigin) -> Origin:
    return Origin(
        agent_id=wire.agent_id,
        run_id=wire.run_id,
        tool_call_id=wire.tool_call_id,
        message_id=wire.message_id,
        file_id=wire.file_id,
        taint=taint_from_proto(wire.taint),
    )


def _to_author(origin: pb.PassageOrigin, reason: str) -> Author:
    return Author(require_caller().principal, _to_origin(origin), reason)


def _to_vector(wire: pb.NewPassage) -> SuppliedVector | None:
    if not wire.embedding:
        return None
    # Similarity is the cosine, so vectors are stored with length 1.
    numbers = _numbers(wire)
    return SuppliedVector(
        wire.embedding_model, (numbers / _length(numbers)).astype("<f4").tobytes()
    )


def _check_vector(checks: Checks, path: str, wire: pb.NewPassage) -> None:
    if bool(wire.embedding) != bool(wire.embedding_model):
        problem = "must be set if, and only if, embedding is"
        checks.fail(f"{path}.embedding_model", problem)
    elif len(wire.embedding) > MAX_DIMENSION:
        checks.fail(f"{path}.embedding", f"must not be more than {MAX_DIMENSION} numbers")
    # The length of a huge vector overflows, and a tiny one underflows when it is stored.
    elif wire.embedding and not 1e-18 < _length(_numbers(wire)) < 1e18:
        checks.fail(f"{path}.embedding", "must be finite and not all zero")


def _numbers(wire: pb.NewPassage) -> npt.NDArray[np.float64]:
    # Read from the serialised field, which ends with them: reading the numbers one by one from the
    # message takes five times as long.
    field = pb.NewPassage(embedding=wire.embedding).SerializeToString()
    return np.frombuffer(field[-4 * len(wire.embedding) :], dtype="<f4").astype(np.float64)


def _length(numbers: npt.NDArray[np.float64]) -> float:
    return math.sqrt(numbers @ numbers)


def _check_author(checks: Checks, origin: pb.PassageOrigin, reason: str) -> None:
    _check_origin(checks, origin, "origin")
    check_short_text(checks, reason, "reason", most=MAX_REASON_CHARS)


def _check_origin(checks: Checks, origin: pb.PassageOrigin, field: str) -> None:
    for name, kind in _ORIGIN_IDS.items():
        checks.id(getattr(origin, name), kind, f"{field}.{name}", optional=True)
    check_short_text(checks, origin.tool_call_id, f"{field}.tool_call_id", most=MAX_TOOL_CALL_CHARS)


def _check_metadata(checks: Checks, metadata: Mapping[str, str], field: str) -> None:
    if len(metadata) > MAX_METADATA:
        checks.fail(field, f"must not be more than {MAX_METADATA} pairs")
        return
    wrong = any(
        not key or "\x00" in key + value or len(key) + len(value) > MAX_METADATA_CHARS
        for key, value in metadata.items()
    )
    checks.unless(
        not wrong,
        field,
        f"keys must not be empty, and a pair at most {MAX_METADATA_CHARS} characters without NUL",
    )
