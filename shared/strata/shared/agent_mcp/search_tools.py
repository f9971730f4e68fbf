"""Tools that search conversations and archival memory, and the one that stores a passage."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from google.protobuf.timestamp_pb2 import Timestamp

from strata.api.archival.v1 import passage_service_pb2 as passage_pb
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.protocol.errors import FieldViolation, InvalidArgumentError
from strata.protocol.images import image_text
from strata.shared.agent_mcp.memory import ConnectedAgent, MemoryServices
from strata.shared.convert.messages import ROLES, role_name
from strata.shared.local_time import in_zone
from strata.shared.messages import MessageRole

Arguments = dict[str, Any]

_DATE_ONLY = re.compile(r"\d{4}-\d{2}-\d{2}")
_TAG_MATCH_MODES = {
    "any": passage_pb.TAG_MATCH_MODE_ANY,
    "all": passage_pb.TAG_MATCH_MODE_ALL,
}


async def search_conversations(
    client: MemoryServices, memory: ConnectedAgent, arguments: Arguments
) -> dict[str, Any]:
    """Searches the messages of all conversations of the agent.

    Raises:
        InvalidArgumentError: A date is not ISO 8601 (``INVALID_FIELD``).
        StrataError: Recall refuses.
    """
    request = message_pb.SearchMessagesRequest(
        agent_id=memory.agent_id,
        query=arguments["query"],
        roles=[ROLES.to_proto[MessageRole(role)] for role in arguments.get("roles", [])],
        limit=arguments.get("limit", 0),
        start_time=time_of(arguments, "start_date", memory.timezone),
        end_time=time_of(arguments, "end_date", memory.timezone, end=True),
        timezone=memory.timezone.key,
    )
    response = await client.messages.SearchMessages(request)
    results = [_message(hit, memory.timezone) for hit in response.hits]
    summary = f"Showing {len(results)} results:" if results else "No results found."
    return {"message": summary, "results": results}


async def search_passages(
    client: MemoryServices, memory: ConnectedAgent, arguments: Arguments
) -> dict[str, Any]:
    """Searches all archives of the agent.

    Raises:
        InvalidArgumentError: A date is not ISO 8601 (``INVALID_FIELD``).
        StrataError: Archival memory refuses.
    """
    request = passage_pb.SearchPassagesRequest(
        agent_id=memory.agent_id,
        query=arguments["query"],
        tags=arguments.get("tags", []),
        tag_match_mode=_TAG_MATCH_MODES[arguments.get("tag_match_mode", "any")],
        top_k=arguments.get("top_k", 0),
        start_time=time_of(arguments, "start_datetime", memory.timezone),
        end_time=time_of(arguments, "end_datetime", memory.timezone, end=True),
        timezone=memory.timezone.key,
    )
    response = await client.passages.SearchPassages(request)
    return {"results": [_passage(hit, memory.timezone) for hit in response.hits]}


async def insert_passage(
    client: MemoryServices, memory: ConnectedAgent, arguments: Arguments, editor: str
) -> dict[str, Any]:
    """Stores a fact in the agent's own archive, with the client's name in its metadata.

    Raises:
        StrataError: Archival memory refuses.
    """
    request = passage_pb.InsertPassageRequest(
        request_id=f"mcp-{uuid.uuid4()}",
        agent_id=memory.agent_id,
        passage=passage_pb.NewPassage(
            text=arguments["content"],
            tags=arguments.get("tags", []),
            metadata={"mcp_client": editor},
        ),
    )
    stored = await client.passages.InsertPassage(request)
    if stored.duplicate:
        message = "Nothing was stored: archival memory already has exactly this text."
        tags = {"tags": list(stored.passage.tags)} if arguments.get("tags") else {}
        return {"message": message, "id": stored.passage.id, **tags}
    if not stored.near_duplicates:
        return {"message": "Stored.", "id": stored.passage.id}
    return {
        "message": "Stored. Archival memory already held what is nearly the same:",
        "id": stored.passage.id,
        "near_duplicates": [
            {"id": duplicate.passage_id, "content": duplicate.text}
            for duplicate in stored.near_duplicates
        ],
    }


def time_of(
    arguments: Arguments, field: str, timezone: ZoneInfo, *, end: bool = False
) -> Timestamp | None:
    """Returns an argument as a time; None if it is absent.

    Args:
        arguments: Arguments of the tool.
        field: Name of the argument.
        timezone: Time zone of a time without one.
        end: Return the first moment after it; a date without a time is a whole day.

    Raises:
        InvalidArgumentError: It is not ISO 8601 (``INVALID_FIELD``).
    """
    text = arguments.get(field)
    if text is None:
        return None
    stamp = Timestamp()
    try:
        moment = datetime.fromisoformat(text.strip())
        if end and _DATE_ONLY.fullmatch(text.strip()):
            moment += timedelta(days=1)
        elif end:
            moment += timedelta(microseconds=1)
        zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone)
        stamp.FromDatetime(zoned.astimezone(UTC))
    except (ValueError, OverflowError):
        raise InvalidArgumentError(
            "A date cannot be read.",
            violations=[FieldViolation(field, "is not ISO 8601: YYYY-MM-DD or YYYY-MM-DDTHH:MM")],
        ) from None
    return stamp


class _Relevance(Protocol):
    """Ranks of a match, in the messages of both services."""

    @property
    def rrf_score(self) -> float: ...

    def HasField(self, field_name: Any) -> bool: ...  # noqa: N802 - protobuf names it


def _message(hit: message_pb.MessageHit, timezone: ZoneInfo) -> dict[str, Any]:
    message = hit.message
    result: dict[str, Any] = {
        "timestamp": _local(message.create_time, timezone),
        "role": role_name(message.role),
        "relevance": {"search_mode": hit.relevance.search_mode, **_ranks(hit.relevance)},
    }
    thinking = "\n".join(part.reasoning.text for part in message.parts if part.reasoning.text)
    if thinking:
        result["thinking"] = thinking
    pieces = [part.text.text or part.summary.text for part in message.parts]
    pieces += [image_text(part.image.alt_text) for part in message.parts if part.HasField("image")]
    pieces += [part.tool_return.content for part in message.parts]
    result["content"] = "\n".join(piece for piece in pieces if piece)
    return result


def _passage(hit: passage_pb.PassageHit, timezone: ZoneInfo) -> dict[str, Any]:
    return {
        "timestamp": _local(hit.passage.create_time, timezone),
        "content": hit.passage.text,
        "tags": list(hit.passage.tags),
        "relevance": _ranks(hit.relevance),
    }


def _ranks(relevance: _Relevance) -> dict[str, Any]:
    ranks: dict[str, Any] = {"rrf_score": round(relevance.rrf_score, 4)}
    for name in ("vector_rank", "fts_rank"):
        if relevance.HasField(name):
            ranks[name] = getattr(relevance, name)
    return ranks


def _local(moment: Timestamp, timezone: ZoneInfo) -> str:
    return in_zone(moment.ToDatetime(tzinfo=UTC), timezone).isoformat()
