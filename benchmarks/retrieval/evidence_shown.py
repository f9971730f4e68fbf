"""Measures how much evidence `conversation_search` returns, with the tool's own code."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, cast

from benchmarks.retrieval.datasets import Question, Turn
from benchmarks.retrieval.scoring import SHOWN, TOKENS
from strata.agent_loop.domain.model.chat import DEFAULT_ENDPOINT_TYPE
from strata.agent_loop.models.tokens import TokenEstimator, TokenKey
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.api.recall.v1 import message_service_pb2_grpc as message_grpc
from strata.shared.clock import ManualClock
from strata.shared.tool_returns import pack
from strata.tool_execution.builtin.retrieval import CONVERSATION_SEARCH, ConversationSearch
from strata.tool_execution.domain.tools import CallingAgent, ToolCall

# Ends of lines and of sentences; a tool that excerpts a long message shows some of its sentences.
_SENTENCE_END = re.compile(r"\n+|(?<=[.!?。!?])\s+")


async def conversation_search(
    messages: message_grpc.MessageServiceStub, agent: str, question: Question
) -> str:
    """Returns the packed return of the tool with its defaults, at the time of the question."""
    clock = ManualClock(question.asked)
    tool = ConversationSearch(
        cast("message_grpc.MessageServiceStub", _AskedAt(messages, question.asked)), clock
    )
    caller = CallingAgent(agent, "", "", "", "", "UTC")
    arguments = {"query": question.text}
    call = ToolCall("call", CONVERSATION_SEARCH.name, json.dumps(arguments), "run/step/call")
    output = await tool.run(call, arguments, caller)
    content, _ = pack("OK", output.value, clock.now(), CONVERSATION_SEARCH.return_char_limit)
    return content


def shown(content: str, evidence: Sequence[Turn]) -> dict[str, float]:
    """Returns the mean share of the evidence that a packed return contains, and its tokens.

    A message that is shown in part counts with the share of its sentences, by length.
    """
    shares = [_share(content, turn.text) for turn in evidence]
    size = len(content.encode())
    tokens = TokenEstimator().estimate(TokenKey(DEFAULT_ENDPOINT_TYPE, ""), size)
    return {SHOWN: sum(shares) / len(shares), TOKENS: float(tokens)}


def _share(content: str, text: str) -> float:
    if _inside_json(text) in content:
        return 1.0
    sentences = [part.strip() for part in _SENTENCE_END.split(text) if part.strip()]
    whole = sum(map(len, sentences))
    shown_chars = sum(len(part) for part in sentences if _inside_json(part) in content)
    return shown_chars / whole if whole else 0.0


def _inside_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


class _AskedAt:
    """The message service for a question that was asked at another time than now."""

    def __init__(self, messages: message_grpc.MessageServiceStub, asked: datetime) -> None:
        self._messages = messages
        self._asked = asked

    async def SearchMessages(  # noqa: N802 (the name of the RPC)
        self, request: message_pb.SearchMessagesRequest
    ) -> message_pb.SearchMessagesResponse:
        request.reference_time.FromDatetime(self._asked)
        return await self._messages.SearchMessages(request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._messages, name)
