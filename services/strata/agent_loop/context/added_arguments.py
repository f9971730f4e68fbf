"""Arguments that the V2 loop adds to tools: ``thinking`` first, ``request_heartbeat`` last.

The model sees them in every schema and in its earlier calls (docs/wire-format.md#inner-thoughts).
They are removed from a reply before its calls are validated, stored or run: a thought becomes
reasoning of the message, the heartbeat a field of the call. If a tool's own schema has a parameter
of that name, nothing is added.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from strata.agent_loop.domain.model.chat import PromptPart, ToolCall, ToolSchema
from strata.agent_loop.domain.model.proofs import is_thought
from strata.agent_loop.domain.tools import Tool
from strata.agent_loop.models.conversation_repair import argument_object
from strata.shared.json_stream import StringDecoder, key_name
from strata.shared.json_text import JsonTextError, encodable, indented_json, parse_json
from strata.shared.tool_catalogue import SEND_MESSAGE

THINKING = "thinking"
HEARTBEAT = "request_heartbeat"

_THINKING_SCHEMA = {
    "type": "string",
    "description": "Deep inner monologue private to you only.",
}
_HEARTBEAT_SCHEMA = {
    "type": "boolean",
    "description": (
        "Request an immediate heartbeat after function execution. Set to `true` if you want to"
        " send a follow-up message or run a follow-up tool call."
    ),
}


def added_names(tool: Tool | None, *, thoughts: bool) -> frozenset[str]:
    """Returns the arguments that are added to a tool; `tool` is None for an unknown tool."""
    names = {THINKING, HEARTBEAT} if thoughts else {HEARTBEAT}
    own: Mapping[str, Any] = {} if tool is None else tool.schema.parameters.get("properties", {})
    return frozenset(names.difference(own))


def with_added(tool: Tool, *, thoughts: bool, heartbeat: bool) -> ToolSchema:
    """Returns the schema of a tool with the added arguments.

    Args:
        tool: The tool.
        thoughts: Whether the model writes its thoughts into calls.
        heartbeat: Whether the turn may continue after a call.
    """
    names = added_names(tool, thoughts=thoughts)
    first = {THINKING: _THINKING_SCHEMA} if THINKING in names else {}
    last = {HEARTBEAT: _HEARTBEAT_SCHEMA} if heartbeat and HEARTBEAT in names else {}
    schema = tool.schema.parameters
    parameters = {
        **schema,
        "properties": {**first, **schema.get("properties", {}), **last},
        "required": [*first, *schema.get("required", ()), *last],
    }
    return replace(tool.schema, parameters=parameters)


@dataclass(frozen=True, slots=True)
class TakenOut:
    """A call without the added arguments, and the thought in it."""

    call: ToolCall
    thought: str = ""


def take_out(call: ToolCall, names: Collection[str], *, heartbeat: bool) -> TakenOut:
    """Removes the added arguments from a call.

    Arguments that are not a JSON object stay unchanged: the call is refused later for them.

    Args:
        call: The call, as the model wrote it.
        names: Names of the arguments to remove.
        heartbeat: Whether the schema has a heartbeat argument; otherwise a heartbeat counts only
            if it is true.
    """
    try:
        # A JSON escape can encode half a surrogate pair, which cannot be stored.
        arguments = encodable(parse_json(call.arguments)) if call.arguments.strip() else {}
    except JsonTextError:
        return TakenOut(call)
    if not isinstance(arguments, dict):
        return TakenOut(call)
    remaining = {name: value for name, value in arguments.items() if name not in names}
    thought = arguments.get(THINKING, "") if THINKING in names else ""
    is_requested = HEARTBEAT in names and str(arguments.get(HEARTBEAT, "")).lower() == "true"
    text = call.arguments
    if len(remaining) < len(arguments):
        text = json.dumps(remaining, ensure_ascii=False)
    flag = is_requested if HEARTBEAT in names and (is_requested or heartbeat) else None
    thought = thought if isinstance(thought, str) else json.dumps(thought, ensure_ascii=False)
    call = replace(call, arguments=text, request_heartbeat=flag)
    return TakenOut(call, thought)


@dataclass(frozen=True, slots=True)
class CallForm:
    """How earlier calls are shown to the model: indented, with the added arguments.

    Attributes:
        thoughts: Whether thoughts are an argument of the calls.
        json_replies: Whether the model writes its messages to the user as JSON objects.
    """

    thoughts: bool
    json_replies: bool = False

    def shown(
        self, content: Iterable[PromptPart], calls: tuple[ToolCall, ...]
    ) -> tuple[tuple[PromptPart, ...], tuple[ToolCall, ...]]:
        """Returns the content and the calls of an assistant message as the model wrote them.

        Reasoning of a provider, signed or not, stays where it is.
        """
        content = tuple(content)
        if not calls:
            return content, calls
        thought = ""
        if self.thoughts:
            thought = "\n".join(part.text for part in content if is_thought(part))
            content = tuple(part for part in content if not is_thought(part))
        # The thoughts of several calls were joined to one text, which the first call shows.
        first, *others = map(self._as_written, calls)
        shown = (_shown(first, self.thoughts, thought), *(_shown(c, False, "") for c in others))
        return content, shown

    def _as_written(self, call: ToolCall) -> ToolCall:
        """Returns a call of ``send_message`` with its JSON message as an object, not as text."""
        if not self.json_replies or call.name != SEND_MESSAGE:
            return call
        arguments = argument_object(call.arguments) or {}
        message = arguments.get("message")
        value = argument_object(message) if isinstance(message, str) else None
        if value is None:
            return call
        text = json.dumps({**arguments, "message": value}, ensure_ascii=False)
        return replace(call, arguments=text)


def _shown(call: ToolCall, thoughts: bool, thought: str) -> ToolCall:
    try:
        arguments = parse_json(call.arguments) if call.arguments.strip() else {}
    except JsonTextError:
        return call
    if not isinstance(arguments, dict):
        return call
    first = {THINKING: thought} if thoughts else {}
    flag = call.request_heartbeat
    last = {} if flag is None else {HEARTBEAT: flag}
    all_arguments = {**first, **arguments, **last}
    return replace(call, arguments=indented_json(all_arguments))


class ArgumentsStream:
    """Removes the added arguments from the streamed arguments of one call.

    Text that is not a JSON object passes unchanged.

    Args:
        names: Names of the arguments to remove.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._state = self._start
        self._key = ""
        self._kept_count = 0
        self._depth = 0
        self._quoted = False
        self._escaped = False
        self._thought: StringDecoder | None = None
        self._dropped = False
        self._arguments: list[str] = []
        self._thoughts: list[str] = []

    def feed(self, piece: str) -> tuple[str, str]:
        """Adds a piece; returns its part of the arguments, and its part of the thought."""
        self._arguments, self._thoughts = [], []
        for char in piece:
            self._state(char)
        return "".join(self._arguments), "".join(self._thoughts)

    def _start(self, char: str) -> None:
        self._arguments.append(char)
        if char == "{":
            self._state = self._between
        elif not char.isspace():
            self._state = self._rest

    def _rest(self, char: str) -> None:
        self._arguments.append(char)

    def _between(self, char: str) -> None:
        """Reads the characters before a member or the end of the object."""
        if char == '"':
            self._key, self._state = char, self._in_key
        elif char == "}" or (char != "," and not char.isspace()):
            self._arguments.append(char)
            self._state = self._rest

    def _in_key(self, char: str) -> None:
        self._key += char
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._state = self._before_value

    def _before_value(self, char: str) -> None:
        if char == ":" or char.isspace():
            return
        name = key_name(self._key)
        self._dropped = name in self._names
        self._thought = StringDecoder() if self._dropped and name == THINKING else None
        if not self._dropped:
            self._arguments.append(f"{', ' if self._kept_count else ''}{self._key}: ")
            self._kept_count += 1
        self._state = self._in_value
        self._in_value(char)

    def _in_value(self, char: str) -> None:
        if not self._quoted and not self._depth and char in ",}":
            self._state = self._between
            self._between(char)
            return
        if not self._dropped:
            self._arguments.append(char)
        elif self._thought is not None and self._quoted:
            self._thoughts.append(self._thought.feed(char))
        if self._escaped:
            self._escaped = False
        elif self._quoted:
            self._escaped = char == "\\"
            self._quoted = char != '"'
        elif char == '"':
            self._quoted = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
