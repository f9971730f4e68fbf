"""Converts archives and passages between protos and the domain, and validates requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from strata.api.archival.v1 import archive_service_pb2 as archive_pb
from strata.api.archival.v1 import passage_service_pb2 as pb
from strata.archival.convert.labels import taint_to_proto
from strata.archival.domain.passages import (
    Archive,
    ArchiveChange,
    ArchiveRef,
    Origin,
    Passage,
    RequestKey,
)
from strata.protocol.errors import (
    FailedPreconditionError,
    FieldViolation,
    InvalidArgumentError,
    Reason,
)
from strata.shared.ids import check_id, new_id
from strata.shared.names import name_problems
from strata.shared.one_line import is_one_line
from strata.shared.search.embedding import EmbeddingModels

BYTES_PER_TOKEN = 16
"""Maximum of bytes per token in a stored text; normal text has 3 to 6."""
MAX_QUERY_CHARS = 10_000
MAX_TAGS = 64
MAX_TAG_CHARS = 128
MAX_NAME_CHARS = 200
MAX_DESCRIPTION_CHARS = 10_000
MAX_REQUEST_ID_CHARS = 256
MAX_TIME_TO_LIVE_S = 100 * 365 * 24 * 3600


def archive_to_proto(archive: Archive) -> archive_pb.Archive:
    """Returns an archive as a proto."""
    wire = archive_pb.Archive(
        id=archive.id,
        name=archive.name,
        description=archive.description,
        embedding_model=archive.embedding_model,
        embedding_dim=archive.embedding_dim,
        passage_count=archive.passage_count,
        unindexed_count=archive.unindexed_count,
        agent_ids=archive.agent_ids,
        time_to_live_seconds=archive.time_to_live,
    )
    wire.create_time.FromDatetime(archive.create_time)
    wire.update_time.FromDatetime(archive.update_time)
    return wire


def passage_to_proto(passage: Passage) -> pb.Passage:
    """Returns a passage as a proto."""
    wire = pb.Passage(
        id=passage.id,
        archive_id=passage.archive_id,
        text=passage.text,
        tags=passage.tags,
        metadata=passage.metadata,
        origin=origin_to_proto(passage.origin),
        revision=passage.revision,
        index_state=pb.INDEX_STATE_INDEXED if passage.indexed else pb.INDEX_STATE_PENDING,
        token_count=passage.token_count,
        near_duplicate_ids=passage.near_duplicate_ids,
    )
    wire.create_time.FromDatetime(passage.create_time)
    wire.update_time.FromDatetime(passage.update_time)
    if passage.deleted:
        wire.delete_time.FromDatetime(passage.update_time)
    return wire


def origin_to_proto(origin: Origin) -> pb.PassageOrigin:
    """Returns an origin as a proto."""
    return pb.PassageOrigin(
        agent_id=origin.agent_id,
        run_id=origin.run_id,
        tool_call_id=origin.tool_call_id,
        message_id=origin.message_id,
        file_id=origin.file_id,
        taint=taint_to_proto(origin.taint),
    )


def to_archive(
    request: archive_pb.CreateArchiveRequest, models: EmbeddingModels, now: datetime
) -> Archive:
    """Returns the archive to create.

    Raises:
        InvalidArgumentError: Request id, name, description, time-to-live or model are wrong.
    """
    violations = [
        *_request_id_violations(request.request_id),
        *_name_violations(request.name),
        *_description_violations(request.description),
        *_time_to_live_violations(request.time_to_live_seconds),
    ]
    if request.agent_id:
        check_id(request.agent_id, "agent", field="agent_id")
    refuse(violations)
    model = models.known(request.embedding_model)
    return new_archive(
        request.name,
        model.id,
        model.dim,
        now,
        description=request.description,
        time_to_live=request.time_to_live_seconds,
        # Without a model the archive follows the default, also when that changes.
        own_model=model.id if request.embedding_model else "",
    )


def own_archive(agent_id: str, model: str, dim: int, now: datetime) -> Archive:
    """Returns the template of an agent's own archive."""
    return new_archive(
        f"Archive of {agent_id}",
        model,
        dim,
        now,
        description="Made for the agent at its first passage.",
        own_agent_id=agent_id,
    )


def new_archive(name: str, model: str, dim: int, now: datetime, **fields: Any) -> Archive:
    """Returns an archive with a new id and no passages."""
    return Archive(
        id=new_id("archive"),
        name=name,
        embedding_model=model,
        embedding_dim=dim,
        passage_count=0,
        create_time=now,
        update_time=now,
        **{"description": "", "time_to_live": 0, **fields},
    )


def to_change(request: archive_pb.UpdateArchiveRequest) -> ArchiveChange:
    """Returns the changes of an UpdateArchive request.

    Raises:
        InvalidArgumentError: A value is wrong.
    """
    check_id(request.archive_id, "archive", field="archive_id")
    violations = [
        *(_name_violations(request.name) if request.HasField("name") else ()),
        *_description_violations(request.description),
        *_time_to_live_violations(request.time_to_live_seconds),
    ]
    refuse(violations)
    return ArchiveChange(
        name=request.name if request.HasField("name") else None,
        description=request.description if request.HasField("description") else None,
        time_to_live=(
            request.time_to_live_seconds if request.HasField("time_to_live_seconds") else None
        ),
    )


def to_request(
    message: archive_pb.UpdateArchiveRequest
    | pb.UpdatePassageRequest
    | pb.RestorePassageRequest
    | pb.PurgePassageRequest,
) -> RequestKey:
    """Returns the idempotency key of a request: its id and a digest of its content.

    Raises:
        InvalidArgumentError: Its id is wrong.
    """
    digest = sha256(f"{message.DESCRIPTOR.full_name}\0".encode())
    digest.update(message.SerializeToString(deterministic=True))
    return RequestKey(check_request_id(message.request_id), digest.hexdigest())


def to_place(archive_id: str, agent_id: str) -> ArchiveRef:
    """Returns the archive that a request refers to, by its id or by its agent.

    Raises:
        InvalidArgumentError: Not exactly one of the two is set, or the id is invalid.
    """
    if bool(archive_id) == bool(agent_id):
        refuse([FieldViolation("archive_id", "set exactly one of archive_id and agent_id")])
    if archive_id:
        check_id(archive_id, "archive", field="archive_id")
    else:
        check_id(agent_id, "agent", field="agent_id")
    return ArchiveRef(archive_id, agent_id)


def checked_tokens(text: str, count_tokens: Callable[[str], int], limit: int) -> int:
    """Returns the number of tokens of a text, if it is within the limits.

    Bytes are limited too, since white space has no tokens.

    Args:
        text: The text.
        count_tokens: See `Embedder.limit_tokens`.
        limit: Maximum of tokens.

    Raises:
        FailedPreconditionError: ``TOKEN_LIMIT_EXCEEDED``.
    """
    most = limit * BYTES_PER_TOKEN
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > most:
        raise FailedPreconditionError(
            f"Archival memory content exceeds the limit of {most} bytes (found {size} bytes);"
            " store it in parts",
            reason=Reason.TOKEN_LIMIT_EXCEEDED,
            metadata={"limit_bytes": most, "bytes": size},
        )
    tokens = count_tokens(text)
    if tokens > limit:
        raise FailedPreconditionError(
            f"Archival memory content exceeds token limit of {limit} tokens"
            f" (found {tokens} tokens)",
            reason=Reason.TOKEN_LIMIT_EXCEEDED,
            metadata={"limit": limit, "tokens": tokens},
        )
    return tokens


def text_violations(field: str, text: str) -> list[FieldViolation]:
    """Returns the violations of a passage's text."""
    if not text.strip():
        return [FieldViolation(field, "must not be blank")]
    if "\x00" in text:
        return [FieldViolation(field, "must not contain NUL")]
    return []


def new_tag_violations(field: str, tags: Iterable[str]) -> list[FieldViolation]:
    """Returns the violations of tags of a passage to store.

    Models see all tags in one line, so each must be a single line.
    """
    tags = list(tags)
    violations = tag_violations(field, tags)
    if violations:
        return violations
    return [
        FieldViolation(
            f"{field}[{index}]",
            f"must be one line of 1 to {MAX_TAG_CHARS} characters, without line ends, control"
            " characters and characters that change the direction of writing",
        )
        for index, tag in enumerate(tags)
        if not is_one_line(tag)
    ]


def tag_violations(field: str, tags: Iterable[str]) -> list[FieldViolation]:
    """Returns the violations of tags to search for; old passages may have any characters."""
    tags = list(tags)
    if len(tags) > MAX_TAGS:
        return [FieldViolation(field, f"must not be more than {MAX_TAGS}")]
    return [
        FieldViolation(f"{field}[{index}]", f"must be 1 to {MAX_TAG_CHARS} characters without NUL")
        for index, tag in enumerate(tags)
        if not tag.strip() or len(tag) > MAX_TAG_CHARS or "\x00" in tag
    ]


def _name_violations(name: str) -> list[FieldViolation]:
    if not name:
        return [FieldViolation("name", "must not be empty")]
    return [FieldViolation("name", problem) for problem in name_problems(name, most=MAX_NAME_CHARS)]


def check_request_id(request_id: str) -> str:
    """Validates and returns a request id; it may be empty.

    Raises:
        InvalidArgumentError: It is too long or contains NUL.
    """
    refuse(_request_id_violations(request_id))
    return request_id


def check_tags(tags: Iterable[str]) -> list[str]:
    """Validates and returns tags to search for.

    Raises:
        InvalidArgumentError: There are too many, or one of them is invalid.
    """
    wanted = list(tags)
    refuse(tag_violations("tags", wanted))
    return wanted


def _request_id_violations(request_id: str) -> list[FieldViolation]:
    if len(request_id) > MAX_REQUEST_ID_CHARS or "\x00" in request_id:
        description = f"must be at most {MAX_REQUEST_ID_CHARS} characters without NUL"
        return [FieldViolation("request_id", description)]
    return []


def _description_violations(description: str) -> list[FieldViolation]:
    if len(description) > MAX_DESCRIPTION_CHARS or "\x00" in description:
        wanted = f"must be at most {MAX_DESCRIPTION_CHARS} characters without NUL"
        return [FieldViolation("description", wanted)]
    return []


def _time_to_live_violations(seconds: int) -> list[FieldViolation]:
    if not 0 <= seconds <= MAX_TIME_TO_LIVE_S:
        wanted = f"must be between 0 (for ever) and {MAX_TIME_TO_LIVE_S}, a hundred years"
        return [FieldViolation("time_to_live_seconds", wanted)]
    return []


def checked_time(value: Timestamp, field: str, violations: list[FieldViolation]) -> datetime | None:
    """Returns a time in UTC; adds a violation and returns None if it is invalid."""
    try:
        return value.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        violations.append(FieldViolation(field, "is not a time between the years 1 and 9999"))
        return None


def refuse(violations: Sequence[FieldViolation]) -> None:
    """Raises an error with all violations, if there are any.

    Raises:
        InvalidArgumentError: There are violations.
    """
    if violations:
        raise InvalidArgumentError(
            "The request has wrong fields: "
            + "; ".join(f"{item.field} {item.description}" for item in violations)
            + ".",
            violations=violations,
        )
