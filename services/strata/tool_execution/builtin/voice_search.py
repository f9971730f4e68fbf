"""The tool ``search_memory``, with which voice agents search their memory.

The last message of the user is the query, so that the model needs no tokens to write one.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import chain
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from strata.api.archival.v1 import passage_service_pb2 as passage_pb
from strata.api.archival.v1 import passage_service_pb2_grpc as passage_grpc
from strata.api.common.v1 import message_pb2 as common
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.api.recall.v1 import message_service_pb2_grpc as message_grpc
from strata.shared.blank_text import is_blank
from strata.shared.clock import Clock
from strata.shared.convert.messages import taint_from_proto
from strata.shared.search.time_expressions import zone_of
from strata.shared.tool_schemas import integer, parameters, texts
from strata.tool_execution.builtin.retrieval import message_result, passage_result
from strata.tool_execution.builtin.schemas import builtin
from strata.tool_execution.domain.tools import CallingAgent, Output, ToolCall, ToolError, ToolType

Arguments = dict[str, Any]

_HITS = 5
_KEYWORD_HITS = 3
# Maximum length of a query in recall and archival memory.
_QUERY_CHARS = 1_000

# Ten years in minutes. The bound keeps the resulting time within the range of a timestamp.
_MINUTES = {"minimum": 0, "maximum": 5_256_000}

SEARCH_MEMORY = builtin(
    name="search_memory",
    description=(
        "Search earlier conversation and archival memory, only when the user refers to something"
        " that is neither in view nor in your memory blocks. The last message of the user is the "
        "query automatically. Leave the arguments out unless they make the search clearly better."
    ),
    kind=ToolType.CORE,
    parameters=parameters(
        [],
        convo_keyword_queries={
            **texts("Names, ids or phrases to search for too in earlier conversation."),
            "maxItems": 5,
        },
        start_minutes_ago=integer(
            "Only messages and facts that are at most this many minutes old.", **_MINUTES
        ),
        end_minutes_ago=integer(
            "Only messages and facts that are at least this many minutes old.", **_MINUTES
        ),
    ),
)


class SearchMemory:
    """Runs ``search_memory``, which searches both memories concurrently to keep latency low.

    Args:
        messages: Message service of recall.
        passages: Passage service of archival memory.
        clock: Gives the time from which minutes are counted back.
    """

    names = frozenset({"search_memory"})

    def __init__(
        self,
        messages: message_grpc.MessageServiceStub,
        passages: passage_grpc.PassageServiceStub,
        clock: Clock,
    ) -> None:
        self._messages = messages
        self._passages = passages
        self._clock = clock

    async def run(self, call: ToolCall, arguments: Arguments, caller: CallingAgent) -> Output:
        """Searches messages and archival memory.

        Raises:
            ToolError: The time frame is empty, or there is nothing to search for.
            StrataError: Recall or archival memory refused the request.
        """
        frame = self._frame(arguments)
        keywords = [word.strip() for word in arguments.get("convo_keyword_queries", [])]
        keywords = list(dict.fromkeys(word for word in keywords if not is_blank(word)))
        user_text = await self._last_user_text(caller)
        if not user_text and not keywords:
            raise ToolError("The user said nothing in words; give convo_keyword_queries.")
        first = user_text or keywords[0]
        queries = dict.fromkeys([first, *keywords])
        searches = [
            self._search(query, caller, frame, _HITS if query == first else _KEYWORD_HITS)
            for query in queries
        ]
        facts, hit_lists = await asyncio.gather(
            self._facts(first, caller, frame), asyncio.gather(*searches)
        )
        timezone = zone_of(caller.timezone)
        now = self._clock.now()
        hits = {hit.message.id: hit for hits in hit_lists for hit in hits}
        if not hits and not facts:
            return Output({"message": "No results found.", "conversation": [], "archival": []})
        said_by = (hit.message.provenance for hit in hits.values())
        written_under = (hit.passage.origin.taint for hit in facts)
        return Output(
            {
                "conversation": [message_result(hit, now, timezone) for hit in hits.values()],
                "archival": [passage_result(hit, timezone) for hit in facts],
            },
            taint=taint_from_proto(chain.from_iterable([*said_by, *written_under])),
        )

    def _frame(self, arguments: Arguments) -> dict[str, Timestamp]:
        start = arguments.get("start_minutes_ago")
        end = arguments.get("end_minutes_ago")
        if start is not None and end is not None and start <= end:
            raise ToolError(
                "The time frame is empty: start_minutes_ago must be more than end_minutes_ago,"
                " since it lies further back."
            )
        frame = {}
        for name, minutes in (("start_time", start), ("end_time", end)):
            if minutes is not None:
                frame[name] = Timestamp()
                frame[name].FromDatetime(self._clock.now() - timedelta(minutes=minutes))
        return frame

    async def _last_user_text(self, caller: CallingAgent) -> str:
        """Returns the last text of the user, in this run or else before it; empty if none."""
        for run_id in (caller.run_id, ""):
            request = message_pb.ListMessagesRequest(
                conversation_id=caller.conversation_id,
                run_id=run_id,
                roles=[common.ROLE_USER],
                order=message_pb.LIST_ORDER_NEWEST_FIRST,
                page_size=1,
            )
            for message in (await self._messages.ListMessages(request)).messages:
                text = " ".join(part.text.text for part in message.parts if part.text.text)
                if not is_blank(text):
                    return text.strip()[:_QUERY_CHARS]
        return ""

    async def _search(
        self, query: str, caller: CallingAgent, frame: dict[str, Timestamp], limit: int
    ) -> list[message_pb.MessageHit]:
        request = message_pb.SearchMessagesRequest(
            agent_id=caller.agent_id,
            query=query[:_QUERY_CHARS],
            limit=limit,
            exclude_run_id=caller.run_id,
            timezone=caller.timezone,
            start_time=frame.get("start_time"),
            end_time=frame.get("end_time"),
        )
        return list((await self._messages.SearchMessages(request)).hits)

    async def _facts(
        self, query: str, caller: CallingAgent, frame: dict[str, Timestamp]
    ) -> list[passage_pb.PassageHit]:
        request = passage_pb.SearchPassagesRequest(
            agent_id=caller.agent_id,
            query=query[:_QUERY_CHARS],
            top_k=_HITS,
            timezone=caller.timezone,
            start_time=frame.get("start_time"),
            end_time=frame.get("end_time"),
        )
        return list((await self._passages.SearchPassages(request)).hits)
