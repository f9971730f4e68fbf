"""Adds tool calling to models without it: one JSON action per reply, enforced by a schema.

Small local models call tools badly or not at all through the API. With an enforced schema, one
wrote 105 of 105 calls well-formed (decision 0030). This wrapper offers the tools in the prompt,
lets the server enforce the schema, and converts the action back to a tool call, or to text that
is streamed as it is written.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from strata.agent_loop.domain.model.chat import (
    ChatModel,
    ChatRole,
    FinishReason,
    JsonReply,
    ModelEvent,
    ModelReply,
    ModelRequest,
    ReasoningDelta,
    ReasoningPart,
    ReplyPart,
    TextDelta,
    TextPart,
    ToolCall,
    ToolCallDelta,
    ToolChoice,
    ToolChoiceMode,
    ToolSchema,
    UsageEvent,
)
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind
from strata.agent_loop.models.conversation_repair import argument_object
from strata.agent_loop.models.ids import new_call_id
from strata.agent_loop.models.structured_tools import prompt as structured_prompt
from strata.agent_loop.models.structured_tools.action import MessageStream, parse
from strata.shared.tool_catalogue import CATALOGUE
from strata.shared.usage import Usage

ATTEMPTS = 2


class StructuredToolModel:
    """Wraps a plain model so that it can call tools.

    Requests without tools are passed on unchanged.
    """

    def __init__(self, inner: ChatModel) -> None:
        self._inner = inner

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """See `ChatModel.stream`.

        The model is asked once more after a reply without an action, and, for a message to the
        user only, after an action that it has taken already (`_repeats_earlier_call`).
        """
        if not request.tools:
            async with aclosing(self._inner.stream(request)) as events:
                async for event in events:
                    yield event
            return
        tools = structured_prompt.essential(request.tools)
        blocks = structured_prompt.labels(request.messages)
        request = replace(request, tools=structured_prompt.bound_to(blocks, tools))
        reply = request.response_format
        actions = structured_prompt.allowed(request.tools, request.tool_choice, reply)
        if not actions:
            raise ModelError(
                ModelErrorKind.BAD_REQUEST,
                f"The tool {request.tool_choice.name!r} is not among the offered ones.",
            )
        spent, thoughts = Usage(), list[ReasoningPart]()
        for attempt in range(1, ATTEMPTS + 1):
            turn = _Turn(structured_prompt.say_name(request.tools))
            async with aclosing(self._inner.stream(_plain(request, actions))) as events:
                async for event in events:
                    if (seen := turn.take(event)) is not None:
                        yield seen
            spent += turn.reply.usage
            thoughts += turn.reasoning()
            final = turn.finish(thoughts, spent)
            if attempt < ATTEMPTS and final is not None and _repeats_earlier_call(final, request):
                actions = structured_prompt.allowed(request.tools, ToolChoice.none(), reply)
            elif final is not None:
                for delta in turn.rest(final):
                    yield delta
                yield UsageEvent(spent)
                yield final
                return
        raise ModelError(
            ModelErrorKind.INVALID_REPLY, "The model's reply is not one of the offered actions."
        )


def _repeats_earlier_call(reply: ModelReply, request: ModelRequest) -> bool:
    """Returns whether a reply repeats a call that the model has made since the user's message.

    Small models do that instead of answering: one stored a fact three times and searched for it
    seven times. Only built-in tools count whose repetition has no use, and only if the model may
    also write to the user.
    """
    if request.tool_choice.mode is not ToolChoiceMode.AUTO:
        return False
    earlier: list[tuple[str, dict[str, Any] | None]] = []
    for message in reversed(request.messages):
        if message.role is ChatRole.USER:
            break
        earlier += [(call.name, argument_object(call.arguments)) for call in message.tool_calls]
    return any(
        call.name in CATALOGUE
        and CATALOGUE[call.name].effect.repeatable
        and (call.name, argument_object(call.arguments)) in earlier
        for call in reply.tool_calls
    )


def _plain(request: ModelRequest, actions: list[ToolSchema]) -> ModelRequest:
    return replace(
        request,
        messages=structured_prompt.render(request.messages, request.tools, request.response_format),
        tools=(),
        tool_choice=ToolChoice(),
        # OpenAI's strict schemas must not have `anyOf` at the top.
        response_format=JsonReply(structured_prompt.reply_schema(actions), strict=False),
    )


class _Turn:
    """A reply that is being received."""

    def __init__(self, say: str) -> None:
        self._say = say
        self._message = MessageStream(say)
        self._pieces: list[str] = []
        self._reply: ModelReply | None = None

    @property
    def reply(self) -> ModelReply:
        """The inner model's whole reply."""
        if self._reply is None:
            raise ModelError(ModelErrorKind.CUT_OFF, "The stream ended without a reply.")
        return self._reply

    @property
    def _shown(self) -> str:
        return "".join(self._pieces)

    def reasoning(self) -> list[ReasoningPart]:
        """The reasoning of the reply."""
        return [part for part in self.reply.content if isinstance(part, ReasoningPart)]

    def take(self, event: ModelEvent) -> ModelEvent | None:
        """Translates an event of the inner model; returns None if the caller does not need it."""
        if isinstance(event, ModelReply):
            self._reply = event
        elif isinstance(event, ReasoningDelta):
            return event
        elif isinstance(event, TextDelta):
            text = self._message.feed(event.text)
            self._pieces.append(text)
            return TextDelta(text) if text else None
        return None

    def finish(self, thoughts: list[ReasoningPart], usage: Usage) -> ModelReply | None:
        """Returns the reply with its action as call or text; None if it has no action."""
        text, calls = self._shown, tuple[ToolCall, ...]()
        if not text:
            # Text that was streamed already is kept, even if the rest of the JSON is missing.
            action = parse(self.reply.text)
            if action is None:
                text = self._plain_text()
            elif action.tool == self._say:
                text = action.message() or ""
            else:
                calls = (ToolCall(new_call_id(), action.tool, action.arguments),)
            if not text and not calls:
                return None
        content: tuple[ReplyPart, ...] = (*thoughts, TextPart(text)) if text else tuple(thoughts)
        return ModelReply(content, calls, self._reason(calls), usage, self.reply.model)

    def rest(self, final: ModelReply) -> list[ModelEvent]:
        """Returns the deltas that were not streamed yet."""
        events: list[ModelEvent] = []
        if final.text and not any(self._pieces):
            events.append(TextDelta(final.text))
        events.extend(
            ToolCallDelta(index, call.id, call.name, call.arguments)
            for index, call in enumerate(final.tool_calls)
        )
        return events

    def _plain_text(self) -> str:
        """Returns text without JSON, from a server that ignores the schema, as the message."""
        text = self.reply.text.strip()
        return "" if "{" in text else text

    def _reason(self, calls: tuple[ToolCall, ...]) -> FinishReason:
        return FinishReason.TOOL_CALLS if calls else self.reply.finish_reason
