"""Describes how a server's chat completions deviate from OpenAI's. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class ReplyForm(IntEnum):
    """The ways to ask for JSON, from the weakest to the strongest."""

    PROMPT = 0
    """Only the prompt requests JSON; the provider enforces nothing."""
    OBJECT = 1
    """The provider enforces JSON; the prompt has the schema."""
    SCHEMA = 2
    """The request has the schema unchanged; the provider may enforce it in part."""
    STRICT = 3
    """The request has the schema in strict form; the provider enforces it completely."""


@dataclass(frozen=True, slots=True)
class Quirks:
    """How a server deviates from OpenAI. The defaults change nothing.

    Attributes:
        call_id_length: Required length of tool call ids, letters and digits only; 0 for any.
        limit_name: Name of the output limit parameter that is tried first; empty to choose by the
            name of the model.
        without: Optional parameters that the server refuses.
        names_tools: Whether a request can force a tool by name. Otherwise only that tool is
            offered, and any call is required.
        thinking_toggle: Whether `thinking` switches thinking, which must be off if a call is
            forced.
        reasoning_object: Whether reasoning is set by `reasoning`, with an effort or a limit,
            instead of `reasoning_effort`.
        reasoning_field: Field with the reasoning of earlier replies, which the server requires
            if tools are offered; empty for none.
        json_replies: The strongest form of JSON request that the server accepts; STRICT only if it
            is known to enforce strict schemas.
        json_with_tools: Whether it accepts such a request together with tools. Otherwise the prompt
            asks for JSON while tools are offered.
        system_first: Whether only the first message may be a system message. Later ones are sent as
            marked user messages.
        joined_users: Whether user messages must not follow one another. They are joined.
        reply_after_tool: Whether a user message must not follow a tool return.
        user_last: Whether the last message must not be an assistant message.
        user_before_calls: Whether a user message must precede the first tool call. The first
            messages of a new agent then begin with the login event.
        calls_follow_user: Whether a message with calls must directly follow a user message or a
            return. It is joined with the assistant text before it.
        plain_schemas: Whether schemas are limited to a subset of OpenAPI's.
        call_signatures: Whether calls are sent back with their signatures.
        unsigned_call: The signature for a first call of another model, which has none; empty to
            send none.
        thinking_config: Whether Google's object sets the thinking budget and shows thoughts.
        efforts: Replacements for reasoning efforts that the server does not support.
    """

    call_id_length: int = 0
    limit_name: str = ""
    without: frozenset[str] = frozenset()
    names_tools: bool = True
    thinking_toggle: bool = False
    reasoning_object: bool = False
    reasoning_field: str = ""
    json_replies: ReplyForm = ReplyForm.SCHEMA
    json_with_tools: bool = True
    system_first: bool = False
    joined_users: bool = False
    reply_after_tool: bool = False
    user_last: bool = False
    user_before_calls: bool = False
    calls_follow_user: bool = False
    plain_schemas: bool = False
    call_signatures: bool = False
    unsigned_call: str = ""
    thinking_config: bool = False
    efforts: tuple[tuple[str, str], ...] = ()


NO_QUIRKS = Quirks()
