"""Converts archives and passages between protos and the domain, and validates requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from strata.api.archival.v1 import agent_archive_service_pb2 as agent_pb
from strata.api.archival.v1 import archive_service_pb2 as archive_pb
from strata.api.archival.v1 import passage_service_pb2 as pb
from strata.archival.domain.passages import (
    AgentStats,
    Archive,
    ArchiveChange,
    ArchiveRef,
    Origin,
    Passage,
)
from strata.protocol.errors import (
    FailedPreconditionError,
    Reason,
    invalid_field,
)
from strata.shared.checks import Checks
from strata.shared.convert.messages import labels_to_proto
from strata.shared.idempotency.keys import (
    RequestKey,
    check_request_id,
    digest_of,
)
from strata.shared.ids import new_id
from strata.shared.one_line import is_one_line
from strata.shared.search.embedding import EmbeddingModels

BYTES_PER_TOKEN = 16
"""Maximum of bytes per token in a stored text; normal text has 3 to 6."""
MAX_QUERY_CHARS = 10_000
MAX_TAGS = 64
MAX_TAG_CHARS = 128
MAX_NAME_CHARS = 200
MAX_DESCRIPTION_CHARS = 10_000
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


def stats_to_proto(stats: AgentStats) -> agent_pb.GetAgentStatsResponse:
    """Returns the counts of an agent's archival memory as a proto."""
    return agent_pb.GetAgentStatsResponse(
        passage_count=stats.passage_count,
        tags=stats.tags,
        more_tags=stats.more_tags,
        tainted_tags=[
            agent_pb.TaintedTag(tag=tag, taint=labels_to_proto(labels))
            for tag, labels in stats.taint.items()
        ],
    )


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


def passages_to_proto(passages: Iterable[Passage]) -> list[pb.Passage]:
    """Returns passages as protos; CPU-bound, so call it in a thread for a page."""
    return [passage_to_proto(passage) for passage in passages]


def origin_to_proto(origin: Origin) -> pb.PassageOrigin:
    """Returns an origin as a proto."""
    return pb.PassageOrigin(
        agent_id=origin.agent_id,
        run_id=origin.run_id,
        tool_call_id=origin.tool_call_id,
        message_id=origin.message_id,
        file_id=origin.file_id,
        taint=labels_to_proto(origin.taint),
    )


def to_archive(
    request: archive_pb.CreateArchiveRequest, models: EmbeddingModels, now: datetime
) -> Archive:
    """Returns the archive to create.

    Raises:
        InvalidArgumentError: Request id, name, description, time-to-live or model are wrong.
    """
    checks = Checks()
    checks.request_id(request.request_id)
    _check_name(checks, request.name)
    _check_description(checks, request.description)
    _check_time_to_live(checks, request.time_to_live_seconds)
    checks.id(request.agent_id, "agent", "agent_id", optional=True)
    checks.done()
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
    checks = Checks()
    checks.id(request.archive_id, "archive", "archive_id")
    if request.HasField("name"):
        _check_name(checks, request.name)
    _check_description(checks, request.description)
    _check_time_to_live(checks, request.time_to_live_seconds)
    checks.done()
    return ArchiveChange(
        name=request.name if request.HasField("name") else None,
        description=request.description if request.HasField("description") else None,
        time_to_live=(
            request.time_to_live_seconds if request.HasField("time_to_live_seconds") else None
        ),
    )


def to_request(
    message: archive_pb.CreateArchiveRequest
    | archive_pb.UpdateArchiveRequest
    | pb.UpdatePassageRequest
    | pb.RestorePassageRequest
    | pb.PurgePassageRequest
    | pb.InsertPassageRequest,
) -> RequestKey:
    """Returns the idempotency key of a request: its id and a digest of its content.

    Raises:
        InvalidArgumentError: Its id is wrong.
    """
    label = f"{message.DESCRIPTOR.full_name}\0"
    return RequestKey(check_request_id(message.request_id), digest_of(label, message))


def to_place(archive_id: str, agent_id: str) -> ArchiveRef:
    """Returns the archive that a request refers to, by its id or by its agent.

    Raises:
        InvalidArgumentError: Not exactly one of the two is set, or the id is invalid.
    """
    if bool(archive_id) == bool(agent_id):
        raise invalid_field("archive_id", "set exactly one of archive_id and agent_id")
    checks = Checks()
    checks.id(archive_id, "archive", "archive_id", optional=True)
    checks.id(agent_id, "agent", "agent_id", optional=True)
    checks.done()
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
    max_bytes = limit * BYTES_PER_TOKEN
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > max_bytes:
        raise FailedPreconditionError(
            f"Archival memory content exceeds the limit of {max_bytes} bytes (found {size} bytes);"
            " store it in parts",
            reason=Reason.TOKEN_LIMIT_EXCEEDED,
            metadata={"limit_bytes": max_bytes, "bytes": size},
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


def check_text(checks: Checks, text: str, field: str) -> None:
    """Checks the text of a passage."""
    if not text.strip():
        checks.fail(field, "must not be blank")
    elif "\x00" in text:
        checks.fail(field, "must not contain NUL")


def check_new_tags(checks: Checks, tags: Iterable[str], field: str) -> None:
    """Checks the tags of a passage to store.

    Models see all tags in one line, so each must be a single line.
    """
    tags = list(tags)
    check_tags(checks, tags, field)
    for index, tag in enumerate(tags[:MAX_TAGS]):
        checks.unless(
            not _is_tag(tag) or is_one_line(tag),
            f"{field}[{index}]",
            f"must be one line of 1 to {MAX_TAG_CHARS} characters, without line ends, control"
            " characters and characters that change the direction of writing",
        )


def check_tags(checks: Checks, tags: Iterable[str], field: str) -> None:
    """Checks tags to search for; old passages may have any characters."""
    tags = list(tags)
    if len(tags) > MAX_TAGS:
        checks.fail(field, f"must not be more than {MAX_TAGS}")
        return
    for index, tag in enumerate(tags):
        problem = f"must be 1 to {MAX_TAG_CHARS} characters without NUL"
        checks.unless(_is_tag(tag), f"{field}[{index}]", problem)


def _is_tag(tag: str) -> bool:
    return bool(tag.strip()) and len(tag) <= MAX_TAG_CHARS and "\x00" not in tag


def check_short_text(checks: Checks, text: str, field: str, *, most: int) -> None:
    """Checks a text of at most `most` characters."""
    valid = len(text) <= most and "\x00" not in text
    checks.unless(valid, field, f"must be at most {most} characters without NUL")


def _check_name(checks: Checks, name: str) -> None:
    checks.unless(bool(name), "name", "must not be empty")
    checks.name(name, "name", most=MAX_NAME_CHARS)


def _check_description(checks: Checks, description: str) -> None:
    check_short_text(checks, description, "description", most=MAX_DESCRIPTION_CHARS)


def _check_time_to_live(checks: Checks, seconds: int) -> None:
    checks.unless(
        0 <= seconds <= MAX_TIME_TO_LIVE_S,
        "time_to_live_seconds",
        f"must be between 0 (for ever) and {MAX_TIME_TO_LIVE_S}, a hundred years",
    )
