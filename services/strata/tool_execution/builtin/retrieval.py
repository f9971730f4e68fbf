"""Tools that search recall, and read and write archival memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from strata.api.archival.v1 import passage_service_pb2 as passage_pb
from strata.api.archival.v1 import passage_service_pb2_grpc as passage_grpc
from strata.api.common.v1 import message_pb2 as common
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.api.recall.v1 import message_service_pb2_grpc as message_grpc
from strata.protocol.images import image_text
from strata.shared.clock import Clock
from strata.shared.convert.messages import (
    ROLES,
    labels_to_proto,
    returned_text,
    role_name,
    taint_from_proto,
    taint_of_messages,
)
from strata.shared.local_time import in_zone
from strata.shared.messages import MessageRole
from strata.shared.replies import sent_text
from strata.shared.search.time_expressions import zone_of
from strata.shared.tool_schemas import date, integer, parameters, text, texts
from strata.tool_execution.builtin.excerpts import excerpts_of, shortened, show
from strata.tool_execution.builtin.schemas import builtin
from strata.tool_execution.domain.dates import end_of, start_of, time_ago
from strata.tool_execution.domain.tools import CallingAgent, Output, ToolCall, ToolType

Arguments = dict[str, Any]

OUTDATED = "Compare with the newer result of {timestamp}."
"""The mark of a result whose statement a newer result seems to replace."""

# Messages before and after a match that are shown with it.
_NEIGHBOURS = 1
_MATCH = {
    "any": passage_pb.TAG_MATCH_MODE_ANY,
    "all": passage_pb.TAG_MATCH_MODE_ALL,
}

CONVERSATION_SEARCH = builtin(
    name="conversation_search",
    description=(
        "Search the messages of this and earlier conversations with this user, including those"
        " that are no longer in view. Use it when the user refers to something you cannot see."
        " Returns the best matching messages with their time and speaker, and the messages "
        "directly before and after them."
    ),
    kind=ToolType.CORE,
    parameters=parameters(
        ["query"],
        query=text('What to look for. Words in "quotes" must be adjacent.'),
        roles={
            "type": "array",
            "items": {"type": "string", "enum": ["assistant", "user", "tool"]},
            "description": "Only messages of these speakers.",
        },
        limit=integer("How many results to return (default 5).", minimum=1, maximum=100),
        start_date=date("Only from this date on: YYYY-MM-DD or YYYY-MM-DDTHH:MM."),
        end_date=date("Only up to this date, including the whole day; same format."),
    ),
)

ARCHIVAL_MEMORY_INSERT = builtin(
    name="archival_memory_insert",
    description=(
        "Store a fact in archival memory, which has no size limit and is searched by meaning."
        " Write one self-contained statement, with names and dates spelled out. Use it for"
        " details that need not be in view all the time. The return says if the same fact, or"
        " nearly the same, is stored already."
    ),
    kind=ToolType.CORE,
    parameters=parameters(
        ["content"],
        content=text("The fact to keep."),
        tags=texts("Short labels to find it by."),
    ),
)

ARCHIVAL_MEMORY_SEARCH = builtin(
    name="archival_memory_search",
    description=(
        "Search archival memory by meaning and by words. Use it when memory blocks and the "
        "messages in view do not contain what you need."
    ),
    kind=ToolType.CORE,
    parameters=parameters(
        ["query"],
        query=text("A question or words."),
        tags=texts("Only facts with these tags."),
        tag_match_mode={
            "type": "string",
            "enum": ["any", "all"],
            "description": "Whether one tag is enough (any, the default) or all must match.",
        },
        top_k=integer("How many results to return (default 5).", minimum=1, maximum=100),
        start_datetime=date("Only facts stored from this time on: YYYY-MM-DD or YYYY-MM-DDTHH:MM."),
        end_datetime=date("Only facts stored up to this time; a date includes its whole day."),
    ),
)

RETRIEVAL_TOOLS = (ARCHIVAL_MEMORY_INSERT, ARCHIVAL_MEMORY_SEARCH, CONVERSATION_SEARCH)


class ConversationSearch:
    """Runs ``conversation_search``; messages of the current run are excluded."""

    names = frozenset({"conversation_search"})

    def __init__(self, messages: message_grpc.MessageServiceStub, clock: Clock) -> None:
        self._messages = messages
        self._clock = clock

    async def run(self, call: ToolCall, arguments: Arguments, caller: CallingAgent) -> Output:
        """Searches the agent's messages.

        Raises:
            ToolError: A date is not ISO 8601.
            StrataError: Recall refused the request.
        """
        timezone = zone_of(caller.timezone)
        request = message_pb.SearchMessagesRequest(
            agent_id=caller.agent_id,
            query=arguments["query"],
            roles=[ROLES.to_proto[MessageRole(role)] for role in arguments.get("roles", [])],
            limit=arguments.get("limit", 0),
            exclude_run_id=caller.run_id,
            timezone=caller.timezone,
            neighbours=_NEIGHBOURS,
        )
        _set_time(request.start_time, start_of(arguments.get("start_date"), "start_date", timezone))
        _set_time(request.end_time, end_of(arguments.get("end_date"), "end_date", timezone))
        response = await self._messages.SearchMessages(request)
        if not response.hits:
            return Output({"message": "No results found.", "results": []})
        now = self._clock.now()
        marks = {hit.message.id: outdated_mark(hit, timezone) for hit in response.hits}
        results, messages = show(
            excerpts_of(response.hits),
            lambda hit: message_result(hit, now, timezone),
            lambda message: neighbour_result(message, timezone) | marks.get(message.id, {}),
            matches=[hit.message.id for hit in response.hits],
            most_bytes=caller.max_search_bytes,
        )
        listing = {"message": f"Showing {len(results)} results:", "results": results}
        return Output(listing, taint=taint_of_messages(messages))


class ArchivalTools:
    """Runs ``archival_memory_insert`` and ``archival_memory_search``."""

    names = frozenset({"archival_memory_insert", "archival_memory_search"})

    def __init__(self, passages: passage_grpc.PassageServiceStub) -> None:
        self._passages = passages

    async def run(self, call: ToolCall, arguments: Arguments, caller: CallingAgent) -> Output:
        """Inserts or searches.

        Raises:
            ToolError: A date is not ISO 8601.
            StrataError: Archival memory refused the request.
        """
        if call.name == "archival_memory_insert":
            return await self._insert(call, arguments, caller)
        return await self._search(arguments, caller)

    async def _insert(self, call: ToolCall, arguments: Arguments, caller: CallingAgent) -> Output:
        response = await self._passages.InsertPassage(
            passage_pb.InsertPassageRequest(
                request_id=call.key,
                agent_id=caller.agent_id,
                passage=passage_pb.NewPassage(
                    text=arguments["content"],
                    tags=arguments.get("tags", []),
                    origin=passage_pb.PassageOrigin(
                        agent_id=caller.agent_id,
                        run_id=caller.run_id,
                        tool_call_id=call.id,
                        message_id=caller.message_id,
                        taint=labels_to_proto(caller.taint),
                    ),
                ),
            )
        )
        if response.duplicate:
            note: dict[str, Any] = {
                "message": "Nothing was stored: archival memory holds this very text already."
            }
            if not arguments.get("tags"):
                return Output(note)
            # Earlier tags of the passage may have been written under taint.
            note["tags"] = list(response.passage.tags)
            taint = taint_from_proto(response.passage.origin.taint)
            return Output(note, archival_changed=True, taint=taint)
        near = (
            label for near_duplicate in response.near_duplicates for label in near_duplicate.taint
        )
        return Output(_near(response), archival_changed=True, taint=taint_from_proto(near))

    async def _search(self, arguments: Arguments, caller: CallingAgent) -> Output:
        timezone = zone_of(caller.timezone)
        request = passage_pb.SearchPassagesRequest(
            agent_id=caller.agent_id,
            query=arguments["query"],
            tags=arguments.get("tags", []),
            tag_match_mode=_MATCH[arguments.get("tag_match_mode", "any")],
            top_k=arguments.get("top_k", 0),
            timezone=caller.timezone,
        )
        start = start_of(arguments.get("start_datetime"), "start_datetime", timezone)
        end = end_of(arguments.get("end_datetime"), "end_datetime", timezone)
        _set_time(request.start_time, start)
        _set_time(request.end_time, end)
        response = await self._passages.SearchPassages(request)
        results = [passage_result(hit, timezone) for hit in response.hits]
        return Output(results, taint=taint_of_passages(response.hits))


def _near(response: passage_pb.InsertPassageResponse) -> dict[str, Any] | None:
    if not response.near_duplicates:
        return None
    return {
        "message": "Stored. Archival memory already held what is nearly the same:",
        "near_duplicates": [
            {"id": near.passage_id, "content": near.text} for near in response.near_duplicates
        ],
    }


def _set_time(field: Timestamp, moment: Any) -> None:
    if moment is not None:
        field.FromDatetime(moment)


def local_time(moment: Timestamp, timezone: Any) -> Any:
    """Returns a moment in a timezone."""
    return in_zone(moment.ToDatetime(tzinfo=UTC), timezone)


def message_result(hit: message_pb.MessageHit, now: Any, timezone: Any) -> dict[str, Any]:
    """Returns a matching message as the model sees it."""
    message = hit.message
    sent_at = local_time(message.create_time, timezone)
    result: dict[str, Any] = {
        "timestamp": sent_at.isoformat(),
        "time_ago": time_ago(sent_at, now),
        **_speaker(message),
        "relevance": _relevance(hit.relevance, mode=True),
    }
    thinking = "\n".join(part.reasoning.text for part in message.parts if part.reasoning.text)
    if thinking:
        result["thinking"] = shortened(thinking)
    result["content"] = _content(message)
    return result | outdated_mark(hit, timezone) | _untrusted(taint_of_messages([message]))


def outdated_mark(
    hit: message_pb.MessageHit | passage_pb.PassageHit, timezone: Any
) -> dict[str, Any]:
    """Returns the member that marks a text as possibly replaced by a newer one, if it is.

    The newer text is not repeated: the result it belongs to may be untrusted.
    """
    if not hit.HasField("possibly_outdated"):
        return {}
    newer = local_time(hit.possibly_outdated.newer_time, timezone)
    return {"possibly_outdated": OUTDATED.format(timestamp=newer.isoformat())}


def neighbour_result(message: common.Message, timezone: Any) -> dict[str, Any]:
    """Returns a message next to a matching one, in the form for the model."""
    return {
        "timestamp": local_time(message.create_time, timezone).isoformat(),
        **_speaker(message),
        "content": _content(message),
        **_untrusted(taint_of_messages([message])),
    }


def _speaker(message: common.Message) -> dict[str, Any]:
    name = {"name": message.name} if message.name else {}
    return {"role": role_name(message.role), **name}


def _text_of(part: common.Part) -> str:
    sent = sent_text(part.tool_call.name, part.tool_call.arguments)
    return part.text.text or part.summary.text or sent or ""


def _content(message: common.Message) -> str:
    pieces = [_text_of(part) for part in message.parts]
    pieces += [image_text(part.image.alt_text) for part in message.parts if part.HasField("image")]
    pieces += [
        returned_text(part.tool_return) for part in message.parts if part.HasField("tool_return")
    ]
    return "\n".join(piece for piece in pieces if piece)


def passage_result(hit: passage_pb.PassageHit, timezone: Any) -> dict[str, Any]:
    """Returns a matching passage as the model sees it."""
    return {
        "timestamp": local_time(hit.passage.create_time, timezone).isoformat(),
        "content": hit.passage.text,
        "tags": list(hit.passage.tags),
        "relevance": _relevance(hit.relevance, mode=False),
        **outdated_mark(hit, timezone),
        **_untrusted(taint_of_passages([hit])),
    }


def taint_of_passages(hits: Iterable[passage_pb.PassageHit]) -> tuple[str, ...]:
    """Returns the taint labels under which passages were written."""
    return taint_from_proto(label for hit in hits for label in hit.passage.origin.taint)


def _untrusted(taint: Sequence[str]) -> dict[str, Any]:
    """Returns the member that marks untrusted content; empty for trusted content."""
    return {"untrusted": ",".join(taint)} if taint else {}


def _relevance(relevance: Any, *, mode: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {"search_mode": relevance.search_mode} if mode else {}
    fields["rrf_score"] = round(relevance.rrf_score, 4)
    for name in ("vector_rank", "fts_rank"):
        if relevance.HasField(name):
            fields[name] = getattr(relevance, name)
    return fields
