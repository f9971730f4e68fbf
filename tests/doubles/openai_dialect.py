"""OpenAI's chat completions: the checks of requests and the forms of answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from doubles import images, services
from doubles.script import Fault, Reply, events

_NAME = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")
_MAX_TOOLS = 128
_CALL_ID_LIMIT = 40
_DATA_URL = re.compile(r"data:(?P<type>[a-z/]+);base64,(?P<data>[A-Za-z0-9+/=]*)")
_FINISH_WITHOUT_TOOLS = "stop"
_NO_SCHEMAS = re.compile(r"gpt-3\.5|gpt-4-turbo")


class RefusedError(Exception):
    """The request breaks a rule of the API."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.fault = Fault(400, message, "invalid_request_error", None, param)


def error_body(fault: Fault) -> dict[str, Any]:
    """An error in the format of the API."""
    return {
        "error": {
            "message": fault.message,
            "type": fault.type or None,
            "param": fault.param,
            "code": fault.code,
        }
    }


def check(body: Any) -> None:
    """Raises an error for a request that the API refuses, and for some that it tolerates.

    Raises:
        RefusedError: With the rule that was broken.
    """
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        raise RefusedError("you must provide a model parameter", "model")
    if body.get("stream_options") is not None and not body.get("stream"):
        raise RefusedError(
            "stream_options is only allowed when stream is enabled", "stream_options"
        )
    temperature = body.get("temperature")
    if temperature is not None and not 0 <= temperature <= 2:
        raise RefusedError("temperature must be between 0 and 2", "temperature")
    check_tools(body)
    _check_messages(body.get("messages"))
    _check_response_format(body)


def _check_response_format(body: Mapping[str, Any]) -> None:
    form = body.get("response_format")
    if form is None:
        return
    if form["type"] == "json_schema":
        if set(form) != {"type", "json_schema"}:
            raise RefusedError("Unknown parameter in 'response_format'.", "response_format")
        refuse_old_model(body["model"], "response_format")
        check_schema_format(form["json_schema"], "response_format")
    elif form["type"] == "json_object":
        if "json" not in json.dumps(body["messages"]).lower():
            raise RefusedError(
                "'messages' must contain the word 'json' in some form, to use 'response_format' of"
                " type 'json_object'.",
                "messages",
            )
    elif form["type"] != "text":
        raise RefusedError(f"Invalid value: '{form['type']}'.", "response_format.type")


def refuse_old_model(model: str, where: str) -> None:
    """Refuses a schema for models without structured outputs."""
    if _NO_SCHEMAS.search(model):
        raise RefusedError(
            f"Invalid parameter: '{where}' of type 'json_schema' is not supported with this model.",
            where,
        )


def check_schema_format(form: Mapping[str, Any], where: str) -> None:
    """Refuses a name, a description and a schema of a reply that break a rule."""
    if not _NAME.match(form.get("name", "")):
        raise RefusedError(f"Missing or invalid parameter: '{where}.name'.", where)
    if set(form) - {"type", "name", "description", "schema", "strict"}:
        raise RefusedError(f"Unknown parameter in '{where}'.", where)
    schema = form.get("schema")
    if not isinstance(schema, Mapping):
        raise RefusedError(f"Missing required parameter: '{where}.schema'.", where)
    if form.get("strict"):
        if schema.get("type") != "object":
            raise RefusedError("schema must be a JSON Schema of 'type: \"object\"'", where)
        try:
            _check_strict(schema, where)
        except RefusedError as error:
            raise RefusedError(str(error), where) from None


def check_tools(body: Mapping[str, Any]) -> None:
    """Refuses tools and choices of them that break a rule."""
    tools = body.get("tools")
    if tools is None:
        for name in ("tool_choice", "parallel_tool_calls"):
            if name in body:
                raise RefusedError(f"'{name}' is only allowed when 'tools' are specified", name)
        return
    if not tools:
        raise RefusedError("[] is too short - 'tools'", "tools")
    if len(tools) > _MAX_TOOLS:
        raise RefusedError(
            f"Invalid 'tools': array too long. Expected an array with maximum length {_MAX_TOOLS},"
            f" but got an array with length {len(tools)} instead.",
            "tools",
        )
    names = [tool["function"]["name"] for tool in tools]
    if len(set(names)) != len(names) or not all(_NAME.match(name) for name in names):
        raise RefusedError("tool names must be unique and match the pattern", "tools")
    for tool in tools:
        function = tool["function"]
        if function.get("parameters", {"type": "object"}).get("type") != "object":
            raise RefusedError(f"schema of {function['name']} must be of type object", "tools")
        _check_parameters(function.get("parameters", {}), function["name"])
        if function.get("strict"):
            _check_strict(function["parameters"], function["name"])
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice["function"]["name"] not in names:
        raise RefusedError("tool_choice names a tool that is not offered", "tool_choice")


def _check_parameters(schema: Mapping[str, Any], name: str) -> None:
    if {"oneOf", "anyOf", "allOf", "enum", "not"}.intersection(schema):
        raise RefusedError(
            f"Invalid schema for function '{name}': schema must have type 'object' and not have"
            " 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level.",
            "tools",
        )
    _check_arrays(schema, name)


def _check_arrays(schema: Any, name: str) -> None:
    if not isinstance(schema, Mapping):
        return
    kinds = schema.get("type", [])
    if "items" not in schema and "array" in ([kinds] if isinstance(kinds, str) else kinds):
        raise RefusedError(
            f"Invalid schema for function '{name}': array schema missing items.", "tools"
        )
    inner = [*schema.get("properties", {}).values(), *schema.get("prefixItems", ())]
    inner += [part for key in ("anyOf", "oneOf", "allOf") for part in schema.get(key, ())]
    inner += [schema[key] for key in ("items", "additionalProperties") if key in schema]
    for part in inner:
        _check_arrays(part, name)


def _check_strict(schema: Mapping[str, Any], where: str) -> None:
    unknown = {"default", "oneOf", "allOf", "not", "patternProperties"}.intersection(schema)
    if unknown:
        raise RefusedError(
            f"Invalid schema for function '{where}': {unknown} is not permitted", "tools"
        )
    if "properties" in schema:
        if schema.get("additionalProperties") is not False:
            raise RefusedError(
                f"'{where}': 'additionalProperties' is required to be false", "tools"
            )
        if set(schema.get("required", ())) != set(schema["properties"]):
            raise RefusedError(
                f"'{where}': 'required' must include every key in properties", "tools"
            )
        for name, inner in schema["properties"].items():
            _check_strict(inner, f"{where}.{name}")
    for inner in [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else ())]:
        _check_strict(inner, where)


def _check_messages(messages: Any) -> None:
    if not messages:
        raise RefusedError("[] is too short - 'messages'", "messages")
    seen: set[str] = set()
    waiting: list[str] = []
    for number, message in enumerate(messages):
        where = f"messages.[{number}]"
        role = message.get("role")
        _check_content(message, where)
        if role == "tool":
            if message.get("tool_call_id") not in waiting:
                raise RefusedError(
                    "messages with role 'tool' must be a response to a preceding message with"
                    f" 'tool_calls' ({where})",
                    where,
                )
            waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            raise RefusedError(
                "An assistant message with 'tool_calls' must be followed by tool messages"
                f" responding to each 'tool_call_id'; missing: {waiting}",
                where,
            )
        if role not in ("system", "developer", "user", "assistant"):
            raise RefusedError(f"'{role}' is not one of the supported roles", where)
        waiting = _check_calls(message, seen, where)
        if not waiting and not isinstance(message.get("content"), str | list):
            raise RefusedError("expected a string, got null", f"{where}.content")
    if waiting:
        raise RefusedError(
            f"the conversation ends with unanswered tool calls {waiting}", "messages"
        )


def _check_content(message: Mapping[str, Any], where: str) -> None:
    content = message.get("content")
    if not isinstance(content, list):
        return
    if not content:
        raise RefusedError("content is too short", f"{where}.content")
    for part in content:
        if part["type"] == "text":
            if not part["text"]:
                raise RefusedError("text content parts must be non-empty", f"{where}.content")
        elif part["type"] != "image_url":
            raise RefusedError(f"unknown content part {part['type']!r}", f"{where}.content")
        elif message["role"] != "user":
            raise RefusedError(
                "Image URLs are only allowed for messages with role 'user', but this message with"
                f" role '{message['role']}' contains an image URL.",
                where,
            )
        else:
            check_image(part["image_url"], where)


def check_image(image: Mapping[str, Any], where: str) -> None:
    """Refuses an image that breaks a rule."""
    if image.get("detail", "auto") not in ("auto", "low", "high") or set(image) > {"url", "detail"}:
        raise RefusedError("Invalid image_url", where)
    match = _DATA_URL.fullmatch(image["url"])
    if match is None:
        if not image["url"].startswith("https://"):
            raise RefusedError("Invalid image_url: expected a data or https URL", where)
        return
    wrong = images.problem(match["type"], match["data"])
    if wrong:
        raise RefusedError(f"Invalid image_url: {wrong}", where)


def _check_calls(message: Mapping[str, Any], seen: set[str], where: str) -> list[str]:
    calls = message.get("tool_calls")
    if calls is None:
        return []
    if message["role"] != "assistant" or not calls:
        raise RefusedError("tool_calls belong to an assistant message and are not empty", where)
    for one in calls:
        if one["id"] in seen or len(one["id"]) > _CALL_ID_LIMIT:
            raise RefusedError(f"tool call id {one['id']!r} is too long or not unique", where)
        seen.add(one["id"])
        # The API takes any text; servers that render a template with it do not.
        if not isinstance(json.loads(one["function"]["arguments"]), dict):
            raise RefusedError("arguments of an earlier call are not an object", where)
    return [one["id"] for one in calls]


def finish_reason(reply: Reply) -> str:
    """The reply's finish reason."""
    return reply.finish or ("tool_calls" if reply.calls else _FINISH_WITHOUT_TOOLS)


def usage(reply: Reply, size: int) -> dict[str, Any]:
    """The usage object."""
    written = len(reply.text) + sum(len(one.raw) for one in reply.calls)
    prompt, completion = reply.usage or (size // 4, max(1, written // 4))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": reply.cached},
        "completion_tokens_details": {"reasoning_tokens": len(reply.reasoning) // 4},
    }


def whole(reply: Reply, model: str, number: int, size: int) -> dict[str, Any]:
    """The reply as one object."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.refusal:
        message["refusal"] = reply.refusal
    if reply.calls:
        message["tool_calls"] = [
            {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.raw}}
            for one in reply.calls
        ]
    choice = {"index": 0, "message": message, "finish_reason": finish_reason(reply)}
    body = {**_frame(model, number, "chat.completion"), "choices": [choice]}
    return {**body, "usage": usage(reply, size)} if reply.report_usage else body


def deltas(reply: Reply, model: str, number: int, *, google: bool = False) -> Iterator[bytes]:
    """The events that carry content, one chunk of bytes each.

    Args:
        reply: What is answered.
        model: Who answers.
        number: Of the answer.
        google: Whether thoughts and calls look like Gemini's: marked text, a signature with the
            first call, and calls without an index.
    """
    if reply.refusal:
        yield _event(model, number, {"refusal": reply.refusal})
    opened: set[int] = set()
    thinking = False
    for kind, index, text in events(reply):
        if kind == "reasoning" and google:
            yield _event(model, number, _google_thought(text, first=not thinking))
            thinking = True
        elif kind != "call" and reply.content_parts:
            yield _event(model, number, {"content": [_part(kind, text)]})
        elif kind == "reasoning":
            yield _event(model, number, {"reasoning_content": text})
        elif kind == "text" and thinking:
            thinking = False
            yield _event(model, number, {"content": f"</thought>{text}"})
        elif kind == "text":
            yield _event(model, number, {"content": text})
        else:
            one = reply.calls[index]
            piece: dict[str, Any] = {"index": index, "function": {"arguments": text}}
            if index not in opened:
                opened.add(index)
                piece["type"] = "function"
                piece["function"] = {"name": one.name, "arguments": text}
                if reply.call_ids:
                    piece["id"] = one.id
                if google:
                    piece.pop("index")
                if google and not index:
                    signature = services.gemini_signature(one.name, one.raw)
                    piece["extra_content"] = {"google": {"thought_signature": signature}}
            yield _event(model, number, {"tool_calls": [piece]})


def _google_thought(text: str, *, first: bool) -> dict[str, Any]:
    opening_tag = "<thought>" if first else ""
    return {"content": opening_tag + text, "extra_content": {"google": {"thought": True}}}


def _part(kind: str, text: str) -> dict[str, Any]:
    part = {"type": "text", "text": text}
    return {"type": "thinking", "thinking": [part]} if kind == "reasoning" else part


def opening(model: str, number: int) -> Iterator[bytes]:
    """What comes before the content."""
    yield _event(model, number, {"role": "assistant", "content": ""})


def closing(reply: Reply, model: str, number: int, size: int, want_usage: bool) -> Iterator[bytes]:
    """What comes after the content."""
    yield _event(model, number, {}, finish_reason(reply))
    if want_usage and reply.report_usage:
        frame = _frame(model, number, "chat.completion.chunk")
        yield _data({**frame, "choices": [], "usage": usage(reply, size)})
    yield b"data: [DONE]\n\n"


def error_event(fault: Fault) -> bytes:
    """An error inside the stream."""
    return _data(error_body(fault))


def _event(model: str, number: int, delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return _data({**_frame(model, number, "chat.completion.chunk"), "choices": [choice]})


def _frame(model: str, number: int, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{number}", "object": kind, "created": 1_700_000_000, "model": model}


def _data(value: Any) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"
