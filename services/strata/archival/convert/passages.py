"""Converts new passages, changes, versions and upload progress, and validates requests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from strata.api.archival.v1 import passage_service_pb2 as pb
from strata.archival.convert.archives import (
    check_tags,
    checked_time,
    checked_tokens,
    new_tag_violations,
    origin_to_proto,
    passage_to_proto,
    refuse,
    text_violations,
    to_place,
    to_request,
)
from strata.archival.convert.labels import taint_to_proto, to_taint
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
from strata.protocol.errors import FieldViolation
from strata.shared.context import require_caller
from strata.shared.ids import check_id, new_id

MAX_TOOL_CALL_CHARS = 256
MAX_REASON_CHARS = 2_000
MAX_METADATA = 64
MAX_METADATA_CHARS = 10_000
MAX_DIMENSION = 16_384

_ORIGIN_IDS = {"agent_id": "agent", "run_id": "run", "message_id": "message", "file_id": "file"}


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
        self, wires: Iterable[pb.NewPassage], field: str, now: datetime, principal: str
    ) -> list[NewPassage]:
        """Returns passages to store; CPU-bound, so call it in a thread for many passages.

        Args:
            wires: The passages as protos.
            field: The name of their field in the request.
            now: The time of storing.
            principal: The principal of the request.

        Raises:
            InvalidArgumentError: A text is blank, or tags, metadata, origin, time or vector
                are wrong.
            FailedPreconditionError: ``TOKEN_LIMIT_EXCEEDED``.
        """
        wires = list(wires)
        violations: list[FieldViolation] = []
        for index, wire in enumerate(wires):
            place = f"{field}[{index}]" if len(wires) > 1 else field
            violations += _passage_violations(place, wire)
        refuse(violations)
        return [self._passage(wire, now, principal) for wire in wires]

    def _passage(self, wire: pb.NewPassage, now: datetime, principal: str) -> NewPassage:
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
        )


def _passage_violations(place: str, wire: pb.NewPassage) -> list[FieldViolation]:
    violations = [
        *text_violations(f"{place}.text", wire.text),
        *new_tag_violations(f"{place}.tags", wire.tags),
        *_metadata_violations(f"{place}.metadata", wire.metadata),
        *_origin_violations(f"{place}.origin", wire.origin),
        *_vector_violations(place, wire),
    ]
    checked_time(wire.create_time, f"{place}.create_time", violations)
    return violations


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


def check_change(request: pb.UpdatePassageRequest) -> None:
    """Validates a change, without counting tokens.

    Raises:
        InvalidArgumentError: A value is wrong.
    """
    check_id(request.passage_id, "passage", field="passage_id")
    violations = [
        *new_tag_violations("tags", request.tags),
        *_metadata_violations("metadata", request.metadata),
        *_author_violations(request.origin, request.reason),
    ]
    if request.HasField("text"):
        violations += text_violations("text", request.text)
    refuse(violations)


def to_restoration(request: pb.RestorePassageRequest) -> PassageChange:
    """Returns author, idempotency key and expected revision of a RestorePassage request.

    Raises:
        InvalidArgumentError: A value is wrong.
    """
    check_id(request.passage_id, "passage", field="passage_id")
    violations = _author_violations(request.origin, request.reason)
    if request.revision < 0:
        violations.append(FieldViolation("revision", "must not be negative"))
    refuse(violations)
    author = _to_author(request.origin, request.reason)
    return PassageChange(author, to_request(request), request.expected_revision)


def to_deleter(request: pb.DeletePassageRequest) -> Author:
    """Returns the author of a DeletePassage request.

    Raises:
        InvalidArgumentError: A value is wrong.
    """
    check_id(request.passage_id, "passage", field="passage_id")
    refuse(_author_violations(request.origin, request.reason))
    return _to_author(request.origin, request.reason)


def to_listing(request: pb.ListPassagesRequest) -> tuple[ArchiveRef, Filter]:
    """Returns archive and filter of a ListPassages request; the caller sets the filter's archives.

    Raises:
        InvalidArgumentError: A value is wrong.
    """
    place = to_place(request.archive_id, request.agent_id)
    tags = check_tags(request.tags)
    violations: list[FieldViolation] = []
    start, end = (
        checked_time(getattr(request, name), name, violations) if request.HasField(name) else None
        for name in ("start_time", "end_time")
    )
    if start is not None and end is not None and start >= end:
        violations.append(FieldViolation("end_time", "must be after start_time"))
    refuse(violations)
    for name, kind in (("run_id", "run"), ("message_id", "message")):
        if getattr(request, name):
            check_id(getattr(request, name), kind, field=name)
    within = Filter(
        archive_ids=(),
        tags=_tags(tags),
        tag_match=TagMatch.ALL,
        start_time=start,
        end_time=end,
        run_id=request.run_id,
        message_id=request.message_id,
        show_deleted=request.show_deleted,
    )
    return place, within


def inserted_to_proto(stored: InsertedPassage) -> pb.InsertPassageResponse:
    """Returns a stored passage and its near-duplicates as a response."""
    near = stored.passage.near_duplicate_ids
    return pb.InsertPassageResponse(
        passage=passage_to_proto(stored.passage),
        duplicate=stored.duplicate,
        near_duplicate_ids=near,
        near_duplicates=[
            pb.NearDuplicate(passage_id=passage_id, text=text, taint=taint_to_proto(taint))
            for passage_id, text, taint in zip(
                near, stored.near_texts, stored.near_taints, strict=False
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
        taint=to_taint(wire.taint),
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


def _vector_violations(place: str, wire: pb.NewPassage) -> list[FieldViolation]:
    if bool(wire.embedding) != bool(wire.embedding_model):
        return [
            FieldViolation(f"{place}.embedding_model", "must be set if, and only if, embedding is")
        ]
    if len(wire.embedding) > MAX_DIMENSION:
        problem = f"must not be more than {MAX_DIMENSION} numbers"
        return [FieldViolation(f"{place}.embedding", problem)]
    # The length of a huge vector overflows, and a tiny one underflows when it is stored.
    if wire.embedding and not 1e-18 < _length(_numbers(wire)) < 1e18:
        return [FieldViolation(f"{place}.embedding", "must be finite and not all zero")]
    return []


def _numbers(wire: pb.NewPassage) -> npt.NDArray[np.float64]:
    # Read from the serialised field, which ends with them: reading the numbers one by one from the
    # message takes five times as long.
    field = pb.NewPassage(embedding=wire.embedding).SerializeToString()
    return np.frombuffer(field[-4 * len(wire.embedding) :], dtype="<f4").astype(np.float64)


def _length(numbers: npt.NDArray[np.float64]) -> float:
    return math.sqrt(numbers @ numbers)


def _author_violations(origin: pb.PassageOrigin, reason: str) -> list[FieldViolation]:
    violations = _origin_violations("origin", origin)
    if len(reason) > MAX_REASON_CHARS or "\x00" in reason:
        problem = f"must be at most {MAX_REASON_CHARS} characters without NUL"
        violations.append(FieldViolation("reason", problem))
    return violations


def _origin_violations(place: str, origin: pb.PassageOrigin) -> list[FieldViolation]:
    for name, kind in _ORIGIN_IDS.items():
        if getattr(origin, name):
            check_id(getattr(origin, name), kind, field=f"{place}.{name}")
    if len(origin.tool_call_id) > MAX_TOOL_CALL_CHARS or "\x00" in origin.tool_call_id:
        problem = f"must be at most {MAX_TOOL_CALL_CHARS} characters without NUL"
        return [FieldViolation(f"{place}.tool_call_id", problem)]
    return []


def _metadata_violations(place: str, metadata: Mapping[str, str]) -> list[FieldViolation]:
    pairs = dict(metadata)
    if len(pairs) > MAX_METADATA:
        return [FieldViolation(place, f"must not be more than {MAX_METADATA} pairs")]
    wrong = [
        key
        for key, value in pairs.items()
        if not key or "\x00" in key + value or len(key) + len(value) > MAX_METADATA_CHARS
    ]
    problem = (
        f"keys must not be empty, and a pair at most {MAX_METADATA_CHARS} characters without NUL"
    )
    return [FieldViolation(place, problem)] if wrong else []
