"""How a server's chat completions differ from OpenAI's. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class ReplyForm(IntEnum):
    """A way to ask for JSON, the weakest first."""

    PROMPT = 0
    """The prompt asks for it; the provider enforces nothing."""
    OBJECT = 1
    """The provider enforces JSON; the prompt has the schema."""
    SCHEMA = 2
    """The provider is given the schema as it is."""
    STRICT = 3
    """The provider is given the schema in its strict form and enforces all of it."""


@dataclass(frozen=True, slots=True)
class Quirks:
    """What a server needs that OpenAI does not. The defaults change nothing.

    Attributes:
        call_id_length: Characters that ids of tool calls have, letters and digits only; 0 for the
            usual form.
        limit_name: The name of the limit of the reply that is tried first; empty to choose by the
            name of the model.
        without: Optional parameters that the server does not take.
        names_tools: Whether a request can force a tool by its name. Otherwise that tool alone is
            offered and some call is required.
        thinking_toggle: Whether thinking is switched by `thinking`, and has to be off where a call
            is forced.
        reasoning_object: Whether reasoning is asked for by `reasoning`, with an effort or a limit,
            in place of `reasoning_effort`.
        reasoning_field: Field of earlier replies that has their reasoning, which the server wants
            back where tools are offered; empty for none.
        json_replies: The strongest way to ask for a reply in JSON that the server takes; STRICT
            only where it is known to enforce strict schemas.
        json_with_tools: Whether it takes such a request with tools beside it. Otherwise the prompt
            asks for JSON while tools are offered.
        system_first: Whether only the first message may be of the system. Later ones are sent as
            marked messages of the user.
        joined_users: Whether messages of the user must not follow one another. They are joined.
        reply_after_tool: Whether a message of the user must not follow a return of a tool.
        user_last: Whether the last message must not be the model's own.
        user_before_calls: Whether a message of the user must come before the first tool call. The
            first messages of a new agent then begin with the login event.
        calls_follow_user: Whether a message with calls must come directly after a message of the
            user or a return. It is joined with words of the model's own before it.
        plain_schemas: Whether schemas have to keep to a subset of OpenAPI's.
        call_signatures: Whether calls go back with the signature that they came with.
        unsigned_call: The signature of a first call that came without one, from another model;
            empty for none.
        thinking_config: Whether a budget of thinking is set, and thoughts are shown, by an object
            of Google's.
        efforts: Names of reasoning efforts in place of those that the server does not know.
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
