"""A model adapter connected to a scripted server through the real SDK."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from doubles.model_server import ModelServer
from strata.agent_loop.domain.model.chat import (
    ChatMessage,
    ChatModel,
    EndpointType,
    ModelEvent,
    ModelReply,
    ModelRequest,
    ModelSettings,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolSchema,
)
from strata.agent_loop.models.factory import ModelFactory

LOOKUP = ToolSchema(
    "lookup",
    "Looks something up.",
    {
        "type": "object",
        "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["query"],
    },
)


@dataclass(frozen=True)
class Bench:
    """A scripted server with a model that calls it in one of the dialects."""

    server: ModelServer
    factory: ModelFactory
    endpoint_type: EndpointType

    def settings(self, **overrides: Any) -> ModelSettings:
        """Returns model settings with the address of the server."""
        openai = self.endpoint_type != "anthropic"
        fields: dict[str, Any] = {
            "handle": "test/test-model",
            "endpoint_type": self.endpoint_type,
            "model": "test-model",
            "base_url": self.server.openai_url if openai else self.server.anthropic_url,
            "api_key": "secret-key",
        }
        return ModelSettings(**{**fields, **overrides})

    def model(self, **overrides: Any) -> ChatModel:
        """Returns a model that uses the server."""
        return self.factory.model(self.settings(**overrides))

    async def ask(
        self, text: str = "Hello", **overrides: Any
    ) -> tuple[list[ModelEvent], ModelReply]:
        """Makes one model call that offers one tool; returns the deltas and the reply."""
        return await collect(self.model(**overrides), request(text))


def request(text: str = "Hello", tools: Sequence[ToolSchema] = (LOOKUP,)) -> ModelRequest:
    """Returns a short conversation that ends with `text`."""
    messages = [ChatMessage.system("You are a test."), ChatMessage.user(text)]
    return ModelRequest(messages, tools)


async def collect(model: ChatModel, asked: ModelRequest) -> tuple[list[ModelEvent], ModelReply]:
    """Reads a stream to its end and checks the invariants of every stream."""
    seen: list[ModelEvent] = []
    async with aclosing(model.stream(asked)) as events:
        seen.extend([event async for event in events])
    replies = [event for event in seen if isinstance(event, ModelReply)]
    assert len(replies) == 1, "exactly one reply"
    assert seen[-1] is replies[0], "the reply comes last"
    reply = replies[0]
    assert "".join(e.text for e in seen if isinstance(e, TextDelta)) == reply.text
    assert "".join(e.text for e in seen if isinstance(e, ReasoningDelta)) == reply.reasoning
    pieces_of_calls: defaultdict[int, list[ToolCallDelta]] = defaultdict(list)
    for event in seen:
        if isinstance(event, ToolCallDelta):
            pieces_of_calls[event.index].append(event)
    for index, one in enumerate(reply.tool_calls):
        pieces = pieces_of_calls[index]
        assert {piece.id for piece in pieces} == {one.id}
        assert pieces[-1].name == one.name
        assert ("".join(piece.arguments for piece in pieces) or "{}") == one.arguments
    return seen, reply
