"""Scripted answers of a model, replies and faults, for all dialects."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Dialect = Literal["openai", "anthropic", "openai_responses"]

HELD_AFTER = 8
"""Enough for the opening and for some text, in either dialect."""


@dataclass(frozen=True)
class Call:
    """A tool call of a reply. Arguments given as text are sent unchanged, valid or not."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str | None = None

    @property
    def raw(self) -> str:
        """The arguments as JSON text."""
        if isinstance(self.arguments, str):
            return self.arguments
        return json.dumps(self.arguments, ensure_ascii=False)


@dataclass(frozen=True)
class Reply:
    """An answer of the model.

    Attributes:
        text: Its text.
        reasoning: Its reasoning, before text and calls.
        calls: Its tool calls.
        finish: The finish or stop reason, in the dialect's words; derived if empty.
        usage: (prompt, completion) tokens; derived from the sizes if None.
        cached: Tokens of the prompt that came from the cache.
        report_usage: False for a server that reports no usage.
        piece: Characters per delta.
        pause: Seconds before each event of the stream.
        held: Until this is set, only the first `held_after` events of the stream are sent.
        held_after: See `held`.
        cut_after: Cut the connection after so many deltas.
        end_after: End the stream properly, but too early, after so many deltas.
        error_after: (deltas, fault): send the fault as an event inside the stream.
        call_ids: False for a server that gives tool calls no ids.
        whole_calls: True for a server that sends a call in one piece.
        refusal: Text of a refusal.
        content_parts: True for a server that sends reasoning and text as lists of parts (Mistral).
    """

    text: str = ""
    reasoning: str = ""
    calls: Sequence[Call] = ()
    finish: str = ""
    usage: tuple[int, int] | None = None
    cached: int = 0
    report_usage: bool = True
    piece: int = 8
    pause: float = 0.0
    held: asyncio.Event | None = None
    held_after: int = HELD_AFTER
    cut_after: int | None = None
    end_after: int | None = None
    error_after: tuple[int, Fault] | None = None
    call_ids: bool = True
    whole_calls: bool = False
    refusal: str = ""
    content_parts: bool = False


@dataclass(frozen=True)
class Fault:
    """An HTTP error, or an error event. `type` and `code` as in the dialect.

    `body` is the whole answer of a service that has a form of its own for errors.
    """

    status: int
    message: str
    type: str = ""
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | list[Any] | None = None


@dataclass(frozen=True)
class ModelCall:
    """A request as it reached the server."""

    dialect: Dialect
    path: str
    headers: Mapping[str, str]
    body: Any

    @property
    def messages(self) -> Any:
        """The messages, those of Responses in the form of chat completions."""
        if self.dialect == "openai_responses":
            return _chat_messages(self.body)
        return self.body["messages"]

    @property
    def system(self) -> str:
        """The system text."""
        if self.dialect == "anthropic":
            return _joined(self.body.get("system", ""))
        return "\n\n".join(_joined(m["content"]) for m in self.messages if m["role"] == "system")

    @property
    def last(self) -> Mapping[str, Any]:
        """The last message."""
        message: Mapping[str, Any] = self.messages[-1]
        return message

    @property
    def last_text(self) -> str:
        """The text of the last message, tool results left out."""
        return _joined(self.last["content"]) if self.last["role"] != "tool" else ""

    @property
    def answered(self) -> list[str]:
        """Texts of the tool results that close the conversation, in order."""
        if self.dialect == "anthropic":
            content = self.last["content"]
            blocks = content if isinstance(content, list) else []
            return [_joined(b.get("content", "")) for b in blocks if b["type"] == "tool_result"]
        messages = self.messages
        # Images of returns follow them in a message of their own.
        if messages[-1]["role"] == "user" and messages[-2:-1] and messages[-2]["role"] == "tool":
            messages = messages[:-1]
        closing = itertools.takewhile(lambda message: message["role"] == "tool", reversed(messages))
        return [_joined(message["content"]) for message in closing][::-1]

    @property
    def images(self) -> list[tuple[str, bytes]]:
        """Media type and bytes of all images, in order."""
        images_ = []
        for block in blocks_of(self.messages):
            if block["type"] == "image":
                source = block["source"]
                images_.append((source["media_type"], base64.b64decode(source["data"])))
            elif block["type"] == "image_url":
                media_type, _, data = (
                    block["image_url"]["url"].removeprefix("data:").partition(";base64,")
                )
                images_.append((media_type, base64.b64decode(data)))
        return images_

    @property
    def tool_names(self) -> list[str]:
        """Names of the offered tools, in order."""
        tools = self.body.get("tools") or []
        return [t["function"]["name"] if self.dialect == "openai" else t["name"] for t in tools]


Step = Reply | Fault
Responder = Callable[[ModelCall], Step]


def say(text: str, **more: Any) -> Reply:
    """A plain answer."""
    return Reply(text=text, **more)


def call(name: str, arguments: Mapping[str, Any] | str | None = None, **more: Any) -> Reply:
    """An answer that is one tool call."""
    return Reply(calls=(Call(name, arguments if arguments is not None else {}),), **more)


def unauthorized() -> Fault:
    """The key is wrong."""
    return Fault(401, "Incorrect API key provided.", "authentication_error", "invalid_api_key")


def rate_limited(retry_after: float | None = None) -> Fault:
    """Too many requests."""
    headers = {} if retry_after is None else {"retry-after": f"{retry_after:g}"}
    return Fault(
        429, "Rate limit reached.", "rate_limit_error", "rate_limit_exceeded", None, headers
    )


def server_error(status: int = 500) -> Fault:
    """The provider failed."""
    return Fault(status, "The server had an error.", "api_error", "server_error")


def overloaded() -> Fault:
    """The provider sheds load (Anthropic)."""
    return Fault(529, "Overloaded", "overloaded_error", "overloaded_error")


def overflow(dialect: Dialect) -> Fault:
    """The prompt does not fit."""
    if dialect == "anthropic":
        message = "prompt is too long: 213462 tokens > 200000 maximum"
        return Fault(400, message, "invalid_request_error")
    message = "This model's maximum context length is 8192 tokens. Your messages have 9001 tokens."
    return Fault(400, message, "invalid_request_error", "context_length_exceeded", "messages")


def cut(after: int = 0, text: str = "This answer never ends properly.") -> Reply:
    """A connection that breaks after some deltas."""
    return Reply(text=text, cut_after=after)


def events(reply: Reply) -> list[tuple[str, int, str]]:
    """Returns deltas: (kind, index of the call, text), kind being reasoning, text or call.

    A call opens with a delta of no text.
    """
    deltas = [("reasoning", 0, piece) for piece in _pieces(reply.reasoning, reply.piece)]
    deltas += [("text", 0, piece) for piece in _pieces(reply.text, reply.piece)]
    for index, one in enumerate(reply.calls):
        deltas.append(("call", index, one.raw if reply.whole_calls else ""))
        if not reply.whole_calls:
            deltas += [("call", index, piece) for piece in _pieces(one.raw, reply.piece)]
    return deltas


def with_ids(reply: Reply, prefix: str, number: int) -> Reply:
    """Gives the calls ids that are unique within a server."""
    calls = tuple(
        replace(one, id=one.id or f"{prefix}{number:06d}{index:02d}")
        for index, one in enumerate(reply.calls)
    )
    return replace(reply, calls=calls)


def _pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def blocks_of(messages: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yields the blocks of messages, those in results of tools included."""
    for message in messages:
        content = message.get("content")
        for block in content if isinstance(content, list) else ():
            yield block
            if block["type"] == "tool_result":
                yield from blocks_of([block])


def _joined(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(block.get("text", "") for block in content or () if block["type"] == "text")


def _chat_messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the conversation of a request in the form of chat completions."""
    messages: list[dict[str, Any]] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    for item in body["input"]:
        kind = item.get("type", "message")
        if kind == "message":
            messages.append({"role": item["role"], "content": _as_chat(item["content"])})
        elif kind == "function_call_output":
            content = _as_chat(item["output"])
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
        elif kind == "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            one = {"id": item["call_id"], "type": "function", "function": function}
            if not (messages and messages[-1].get("tool_calls")):
                messages.append({"role": "assistant", "content": None, "tool_calls": []})
            messages[-1]["tool_calls"].append(one)
    return messages


def _as_chat(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [
        {"type": "text", "text": part["text"]}
        if part["type"] == "input_text"
        else {"type": "image_url", "image_url": {"url": part["image_url"]}}
        for part in content
    ]
