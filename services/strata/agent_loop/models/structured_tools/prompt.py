"""The prompt of the structured tool mode: tools as text, one JSON action per reply. Pure.

The stable parts (base prompt, tools, examples) come before memory, so that a local server's KV
cache survives a memory edit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from strata.agent_loop.domain.model.chat import (
    ChatMessage,
    ChatRole,
    JsonReply,
    JsonSchema,
    ShownImage,
    TextPart,
    ToolChoice,
    ToolChoiceMode,
    ToolSchema,
)
from strata.agent_loop.models.conversation_repair import (
    argument_object,
    leading_system,
    legal_arguments,
    repair,
)
from strata.shared.one_line import one_line
from strata.shared.tag_escapes import escape
from strata.shared.tool_catalogue import BLOCK_EDITS

SAY = "say"
# Without it a small model repeats the text of the result to the user, or its call.
_AFTER_RESULT = "\n[The user does not see this result. Answer the user, or take the next action.]"
_MEMORY_MARK = "<memory_blocks>"
_SAY_TOOL = ToolSchema(
    SAY,
    "Talk to the user. Only this reaches the user.",
    {
        "type": "object",
        "properties": {"message": {"type": "string"}},
        "required": ["message"],
    },
)
_MEMORY_END = "</memory_blocks>"
# The rendered head of a memory block. Text in a block cannot match it, since it is escaped.
_BLOCK = re.compile(
    r"^<([^<>/\s]+)>\n<description>\n.*?\n</description>\n<metadata>\n(.*?)</metadata>$",
    re.MULTILINE | re.DOTALL,
)
_READ_ONLY = "- read_only=true"
# Grammars express bounds by repeating a rule, and llama.cpp refuses too many repetitions. Larger
# bounds are left out: arguments are validated against the tool's schema when a call is run.
_REPETITIONS = frozenset({"minItems", "maxItems", "minLength", "maxLength"})
_MAX_REPETITIONS = 20
# Annotations make a grammar larger without any use.
_ANNOTATIONS = frozenset({"description", "title", "default", "examples"})
_DESCRIPTION_LIMIT = 160


def say_name(tools: Sequence[ToolSchema]) -> str:
    """Returns the name of the message action, which differs from all tool names."""
    name = SAY
    tool_names = {tool.name for tool in tools}
    while name in tool_names:
        name += "_to_user"
    return name


def essential(tools: Sequence[ToolSchema]) -> tuple[ToolSchema, ...]:
    """Returns the tools with their required arguments only.

    Small models fill in every argument: searches found nothing, because the model invented tags and
    dates as filters.
    """
    return tuple(replace(tool, parameters=_required_only(tool.parameters)) for tool in tools)


def _required_only(parameters: JsonSchema) -> JsonSchema:
    required = parameters.get("required", [])
    properties = parameters.get("properties", {})
    required_properties = {name: schema for name, schema in properties.items() if name in required}
    return {**parameters, "properties": required_properties}


def labels(messages: Sequence[ChatMessage]) -> list[str]:
    """Returns the labels of the editable memory blocks in the prompt, in order."""
    memory = _split(leading_system(messages)[0])[1].partition(_MEMORY_END)[0]
    heads: list[tuple[str, str]] = _BLOCK.findall(memory)
    return [label for label, metadata in heads if _READ_ONLY not in metadata.splitlines()]


def bound_to(blocks: Sequence[str], tools: Sequence[ToolSchema]) -> tuple[ToolSchema, ...]:
    """Returns the tools, with the existing labels as enum in tools that edit memory.

    Otherwise small models invent a suitable label, get the error that there is no such block, and
    stop.
    """
    if not blocks:
        return tuple(tools)
    return tuple(_with_labels(tool, blocks) if tool.name in BLOCK_EDITS else tool for tool in tools)


def _with_labels(tool: ToolSchema, blocks: Sequence[str]) -> ToolSchema:
    properties = tool.parameters.get("properties", {})
    label = {**properties.get("label", {}), "enum": list(blocks)}
    return replace(
        tool, parameters={**tool.parameters, "properties": {**properties, "label": label}}
    )


def allowed(
    tools: Sequence[ToolSchema], choice: ToolChoice, reply: JsonReply | None = None
) -> list[ToolSchema]:
    """Returns the actions that the model may take in this reply.

    Args:
        tools: The offered tools.
        choice: Which tools it may or must call.
        reply: The JSON form of its message to the user; None for any text.
    """
    say = _say_tool(tools, reply)
    if choice.mode is ToolChoiceMode.NONE:
        return [say]
    if choice.mode is ToolChoiceMode.NAMED:
        return [tool for tool in tools if tool.name == choice.name]
    if choice.mode is ToolChoiceMode.REQUIRED:
        return list(tools)
    return [say, *tools]


def reply_schema(tools: Sequence[ToolSchema]) -> JsonSchema:
    """Returns the JSON schema of a reply: exactly one of these actions."""
    return {
        "anyOf": [
            {
                "type": "object",
                "properties": {
                    "tool": {"const": tool.name},
                    "arguments": {
                        "type": "object",
                        **_bare(tool.parameters),
                        "additionalProperties": False,
                    },
                },
                "required": ["tool", "arguments"],
                "additionalProperties": False,
            }
            for tool in tools
        ]
    }


def render(
    messages: Sequence[ChatMessage], tools: Sequence[ToolSchema], reply: JsonReply | None = None
) -> list[ChatMessage]:
    """Returns the conversation for such a model: a system message, then user and assistant."""
    say = say_name(tools)
    system, rest = leading_system(repair(messages))
    static, memory = _split(system)
    labels = [label for label, _ in _BLOCK.findall(memory)]
    sections = [static, _instructions(tools, labels, reply), memory]
    rendered = [ChatMessage.system("\n\n".join(part for part in sections if part))]
    for role, text, images in _conversation(rest, say, reply):
        if rendered[-1].role is role and role is ChatRole.USER:
            earlier = rendered[-1]
            joined = TextPart(f"{earlier.text}\n\n{text}")
            rendered[-1] = ChatMessage(role, (joined, *earlier.images, *images))
        else:
            rendered.append(ChatMessage(role, (TextPart(text), *images)))
    return rendered


def _split(system: str) -> tuple[str, str]:
    at = system.find(_MEMORY_MARK)
    if at == -1:
        return system.strip(), ""
    return system[:at].strip(), system[at:].strip()


def _conversation(
    messages: Sequence[ChatMessage], say: str, reply: JsonReply | None
) -> Iterator[tuple[ChatRole, str, tuple[ShownImage, ...]]]:
    names: dict[str, str] = {}
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        if message.role is ChatRole.USER:
            yield ChatRole.USER, message.text, message.images
        elif message.role is ChatRole.SYSTEM:
            yield ChatRole.USER, f"[system] {message.text}", ()
        elif message.role is ChatRole.TOOL:
            name = names.get(message.tool_call_id or "", "tool")
            yield ChatRole.USER, _result(name, message), message.images
        else:
            if message.text.strip():
                text = _as_written(message.text, reply)
                yield ChatRole.ASSISTANT, _dump(say, json.dumps({"message": text})), ()
            # One action per reply: parallel calls are shown one after the other.
            for call in message.tool_calls:
                names[call.id] = call.name
                if message.text.strip() or call is not message.tool_calls[0]:
                    yield ChatRole.USER, "[go on]", ()
                yield ChatRole.ASSISTANT, _dump(call.name, legal_arguments(call.arguments)), ()
                answer = messages[at]
                yield ChatRole.USER, _result(call.name, answer), answer.images
                at += 1


def _result(tool: str, message: ChatMessage) -> str:
    return f"[result of {tool}] {message.text}{_AFTER_RESULT}"


def _dump(tool: str, arguments: str) -> str:
    action = {"tool": tool, "arguments": json.loads(arguments)}
    return json.dumps(action, ensure_ascii=False)


def _as_written(text: str, reply: JsonReply | None) -> Any:
    """Returns an earlier message in the form in which the model must write the next one."""
    value = argument_object(text) if reply is not None else None
    return text if value is None else value


def _say_tool(tools: Sequence[ToolSchema], reply: JsonReply | None) -> ToolSchema:
    parameters = dict(_SAY_TOOL.parameters)
    if reply is not None:
        parameters["properties"] = {"message": reply.schema or {"type": "object"}}
    return ToolSchema(say_name(tools), _SAY_TOOL.description, parameters)


def _instructions(
    tools: Sequence[ToolSchema], labels: Sequence[str], reply: JsonReply | None
) -> str:
    say = _say_tool(tools, reply)
    lines = [
        "# Actions",
        'Reply with ONE JSON object {"tool": name, "arguments": {...}} and nothing else.',
        "A line that starts with [result of ...] tells what your last action did.",
        f"The user did not say it. When the work is done, use {say.name}.",
        # Escaped: descriptions of MCP tools are untrusted, and this is part of the system message.
        *(one_line(escape(_describe(tool), labels)) for tool in [say, *tools]),
        *_message_rule(say.name, labels, reply),
        *_examples(tools, say.name, greets=reply is None),
    ]
    return "\n".join(lines)


def _message_rule(say: str, labels: Sequence[str], reply: JsonReply | None) -> Iterator[str]:
    """Yields the rule for the message to the user, if it must be JSON."""
    if reply is None:
        return
    about = f" {reply.description}" if reply.description else ""
    yield one_line(escape(f"The message of {say} is a JSON object.{about}", labels))
    if reply.schema is not None:
        schema = json.dumps(reply.schema, ensure_ascii=False)
        yield one_line(escape(f"It satisfies this JSON schema: {schema}", labels))


def _describe(tool: ToolSchema) -> str:
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    required = set(tool.parameters.get("required", ()))
    names = [name if name in required else f"{name}?" for name in properties]
    return f"- {tool.name}({', '.join(names)}): {_brief(tool.description)}"


def _brief(description: str) -> str:
    """Returns about the first sentence of a description: prompts for small models are short."""
    line = description.strip().split("\n\n", 1)[0].replace("\n", " ")
    if len(line) <= _DESCRIPTION_LIMIT:
        return line
    end = line.rfind(". ", 0, _DESCRIPTION_LIMIT)
    return line[: end + 1] if end > 0 else line[:_DESCRIPTION_LIMIT].rsplit(" ", 1)[0] + " ..."


# Examples are shown only for offered tools, since small models copy them.
_EXAMPLES: Sequence[tuple[str, str, Mapping[str, Any]]] = (
    (
        "My sister Ana is a nurse.",
        "core_memory_append",
        {"label": "human", "content": "Sister: Ana, a nurse."},
    ),
    (
        "My sister Ana is a nurse.",
        "memory_insert",
        {"label": "human", "new_str": "Sister: Ana, a nurse."},
    ),
    (
        "Ana is a doctor now.",
        "memory_replace",
        {"label": "human", "old_str": "Ana, a nurse", "new_str": "Ana, a doctor"},
    ),
    (
        "Keep for later: the boiler was serviced on 3 May.",
        "archival_memory_insert",
        {"content": "The boiler was serviced on 3 May."},
    ),
    (
        "When was the boiler serviced?",
        "archival_memory_search",
        {"query": "boiler serviced"},
    ),
    ("What did I say about Ana last week?", "conversation_search", {"query": "Ana"}),
)


def _examples(tools: Sequence[ToolSchema], say: str, *, greets: bool) -> Iterator[str]:
    offered = {tool.name: tool for tool in tools}
    shown: set[str] = set()
    yield "Examples:"
    if greets:
        greeting = {"message": "Hello! How can I help?"}
        yield f"user: Hi -> {_dump(say, json.dumps(greeting))}"
    for text, name, arguments in _EXAMPLES:
        tool = offered.get(name)
        if tool is None or text in shown or not _accepts(tool, arguments):
            continue
        shown.add(text)
        yield f"user: {text} -> {_dump(name, json.dumps(arguments))}"


def _accepts(tool: ToolSchema, arguments: Mapping[str, Any]) -> bool:
    properties = tool.parameters.get("properties", {})
    required = tool.parameters.get("required", ())
    return set(required) <= set(arguments) <= set(properties)


def _is_few(bound: Any) -> bool:
    return isinstance(bound, int) and bound <= _MAX_REPETITIONS


def _bare(schema: Mapping[str, Any]) -> dict[str, Any]:
    stripped: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            stripped[key] = {name: _bare(definition) for name, definition in value.items()}
        elif key in _ANNOTATIONS or (key in _REPETITIONS and not _is_few(value)):
            continue
        elif key == "const":
            stripped[key] = value
        elif isinstance(value, Mapping):
            stripped[key] = _bare(value)
        elif key in ("anyOf", "oneOf", "allOf"):
            stripped[key] = [_bare(option) for option in value]
        else:
            stripped[key] = value
    return stripped
