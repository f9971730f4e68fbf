"""Anthropic's messages API: the checks of requests and the forms of answers."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from doubles import images
from doubles.openai_dialect import RefusedError
from doubles.script import Fault, Reply, blocks_of, events

_ID = re.compile(r"^[a-zA-Z0-9_-]+$")
_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_CACHE_MARKS = 4
_VERSION = re.compile(r"claude-[a-z]+-(\d+)(?:-(\d)(?!\d))?")
_SCHEMA_KEYWORDS = {
    *("type", "enum", "const", "anyOf", "allOf", "title", "description", "properties", "required"),
    *("additionalProperties", "items", "minItems", "format", "$ref", "$defs"),
}


def error_body(fault: Fault) -> dict[str, Any]:
    """An error in the format of the API."""
    return {
        "type": "error",
        "error": {"type": fault.type or "api_error", "message": fault.message},
    }


def signature(thinking: str) -> str:
    """Returns the signature of a thinking block."""
    return hashlib.sha256(f"signed:{thinking}".encode()).hexdigest()


def check(body: Any, headers: Mapping[str, str]) -> None:
    """Raises an error for a request that the API refuses, and for some that it tolerates.

    Raises:
        RefusedError: With the rule that was broken.
    """
    if "anthropic-version" not in headers:
        raise RefusedError("anthropic-version: header is required")
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        raise RefusedError("model: Field required")
    if not isinstance(body.get("max_tokens"), int) or body["max_tokens"] < 1:
        raise RefusedError("max_tokens: Field required")
    for name in ("temperature", "top_p", "top_k"):
        if name in body:
            raise RefusedError(f"{name}: Extra inputs are not permitted")
    _check_thinking(body)
    _check_output(body)
    _check_tools(body)
    _check_turns(body.get("messages"))
    _check_images(body["messages"])
    marks = json.dumps(body).count('"cache_control"')
    if marks > _CACHE_MARKS:
        raise RefusedError(
            f"A maximum of 4 blocks with cache_control may be provided. Found {marks}."
        )


def _check_output(body: Mapping[str, Any]) -> None:
    form = body.get("output_config", {}).get("format")
    if form is None:
        return
    if set(form) != {"type", "schema"} or form["type"] != "json_schema":
        raise RefusedError("output_config.format: Extra inputs are not permitted")
    version = _VERSION.search(body["model"])
    if version is None or (int(version[1]), int(version[2] or 0)) < (4, 5):
        raise RefusedError(f"'{body['model']}' does not support output_config.format.")
    _check_output_schema(form["schema"])


def _check_output_schema(schema: Any) -> None:
    where = "output_config.format.schema"
    if not isinstance(schema, Mapping):
        raise RefusedError(f"{where}: Input should be an object")
    if not {"type", "enum", "const", "anyOf", "allOf"} & set(schema):
        raise RefusedError(f"{where}: Schema type is missing")
    kind = schema.get("type")
    unknown = set(schema) - _SCHEMA_KEYWORDS
    if unknown:
        raise RefusedError(f"{where}: For '{kind}' type, properties {unknown} are not supported")
    if kind == "object" and schema.get("additionalProperties") is not False:
        raise RefusedError(
            f"{where}: For 'object' type, 'additionalProperties' must be explicitly set to false"
        )
    if schema.get("minItems", 0) not in (0, 1):
        raise RefusedError(f"{where}: For 'array' type, 'minItems' values other than 0 or 1")
    if any(isinstance(value, list | dict) for value in schema.get("enum", ())):
        raise RefusedError(f"{where}: Enum values must be simple")
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    inner += [*schema.get("allOf", ()), *([schema["items"]] if "items" in schema else [])]
    for part in inner:
        _check_output_schema(part)


def _check_thinking(body: Mapping[str, Any]) -> None:
    thinking = body.get("thinking", {})
    if thinking.get("type") != "enabled":
        return
    if not 1024 <= thinking["budget_tokens"] < body["max_tokens"]:
        raise RefusedError("thinking.budget_tokens: must be at least 1024 and less than max_tokens")
    if body.get("tool_choice", {}).get("type") in ("any", "tool"):
        raise RefusedError("Thinking may not be enabled when tool_choice forces tool use.")


def _check_tools(body: Mapping[str, Any]) -> None:
    tools = body.get("tools")
    if tools is None:
        if "tool_choice" in body:
            raise RefusedError("tool_choice may only be specified while providing tools")
        return
    names = [tool["name"] for tool in tools]
    if len(set(names)) != len(names):
        raise RefusedError("tools: Tool names must be unique.")
    if any(tool["input_schema"].get("type") != "object" for tool in tools):
        raise RefusedError("tools: input_schema.type must be 'object'")
    for number, schema in enumerate(tool["input_schema"] for tool in tools):
        where = f"tools.{number}.custom.input_schema"
        if {"oneOf", "allOf", "anyOf"}.intersection(schema):
            raise RefusedError(
                f"{where}: input_schema does not support oneOf, allOf, or anyOf at the top level"
            )
        if not all(map(_PROPERTY.fullmatch, schema.get("properties", {}))):
            raise RefusedError(
                f"{where}.properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{{1,64}}$'"
            )
    choice = body.get("tool_choice", {})
    if choice.get("type") == "tool" and choice["name"] not in names:
        raise RefusedError(f"Tool '{choice['name']}' not found in provided tools")


def _check_turns(turns: Any) -> None:
    if not turns:
        raise RefusedError("messages: at least one message is required")
    if turns[0]["role"] != "user":
        raise RefusedError('messages: first message must use the "user" role')
    if turns[-1]["role"] != "user":
        raise RefusedError("This model does not support assistant message prefill.")
    seen: set[str] = set()
    waiting: list[str] = []
    for number, turn in enumerate(turns):
        if turn["role"] not in ("user", "assistant"):
            raise RefusedError(f"messages.{number}: role {turn['role']!r} is not allowed")
        blocks = turn["content"]
        if isinstance(blocks, str):
            blocks = [{"type": "text", "text": blocks}]
        _check_results(blocks, waiting, number)
        waiting = [_check_block(block, turn["role"], seen, number) for block in blocks]
        waiting = [call_id for call_id in waiting if call_id]
    if any(before["role"] == after["role"] for before, after in pairwise(turns)):
        raise RefusedError("messages: roles must alternate between user and assistant")


def _check_images(turns: Any) -> None:
    image_blocks = [block for block in blocks_of(turns) if block["type"] == "image"]
    if len(image_blocks) > 100:
        raise RefusedError(f"messages: too many images: {len(image_blocks)} > 100")
    for block in image_blocks:
        source = block["source"]
        if source["type"] == "url":
            if not source["url"].startswith("https://"):
                raise RefusedError("image.source.url: Only HTTPS URLs are supported.")
        elif source["type"] == "base64":
            most = 2_000 if len(image_blocks) > 20 else 8_000
            wrong = images.problem(source["media_type"], source["data"], most)
            if wrong:
                raise RefusedError(f"messages: image.source.base64: {wrong}")
        else:
            raise RefusedError(f"image.source.type: {source['type']!r} is not known")


def _check_results(blocks: list[Any], waiting: list[str], number: int) -> None:
    """Checks that results come first and match the calls of the previous turn."""
    kinds = [block["type"] for block in blocks]
    results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    if sorted(results) != sorted(waiting):
        raise RefusedError(
            f"messages.{number}: `tool_use` ids {waiting} must be answered by `tool_result` blocks"
            f" in the next message; found {results}"
        )
    if kinds[: len(results)].count("tool_result") != len(results):
        raise RefusedError(f"messages.{number}: tool_result blocks must come first")


def _check_block(block: Mapping[str, Any], role: str, seen: set[str], number: int) -> str:
    kind = block["type"]
    if kind == "text" and not block["text"].strip():
        raise RefusedError(f"messages.{number}: text content blocks must be non-empty")
    if kind == "image" and role != "user":
        raise RefusedError(f"messages.{number}: image blocks are only allowed in user turns")
    if kind == "tool_result" and isinstance(block.get("content"), list):
        for inner in block["content"]:
            if inner["type"] not in ("text", "image"):
                raise RefusedError(f"messages.{number}: {inner['type']} is not allowed in a result")
            _check_block(inner, role, seen, number)
    if kind == "thinking" and block["signature"] != signature(block["thinking"]):
        raise RefusedError(f"messages.{number}: Invalid `signature` in `thinking` block")
    if kind != "tool_use":
        return ""
    if role != "assistant" or block["id"] in seen or not _ID.match(block["id"]):
        raise RefusedError(f"messages.{number}: `tool_use` ids must be unique and well-formed")
    if not isinstance(block["input"], dict):
        raise RefusedError(f"messages.{number}: tool_use.input: Input should be a valid dictionary")
    seen.add(block["id"])
    call_id: str = block["id"]
    return call_id


def stop_reason(reply: Reply) -> str:
    """The reply's stop reason."""
    if reply.refusal:
        return "refusal"
    return reply.finish or ("tool_use" if reply.calls else "end_turn")


def usage(reply: Reply, size: int) -> dict[str, Any]:
    """The usage object. Cached tokens are not part of the input tokens."""
    if not reply.report_usage:
        return {"input_tokens": 0, "output_tokens": 0}
    written = len(reply.text) + sum(len(one.raw) for one in reply.calls)
    prompt, completion = reply.usage or (size // 4, max(1, written // 4))
    return {
        "input_tokens": prompt - reply.cached,
        "cache_read_input_tokens": reply.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": completion,
    }


def whole(reply: Reply, model: str, number: int, size: int) -> dict[str, Any]:
    """The reply as one object."""
    content: list[dict[str, Any]] = []
    if reply.reasoning:
        proof = signature(reply.reasoning)
        content.append({"type": "thinking", "thinking": reply.reasoning, "signature": proof})
    if reply.text:
        content.append({"type": "text", "text": reply.text})
    for one in reply.calls:
        use = {"type": "tool_use", "id": one.id, "name": one.name, "input": json.loads(one.raw)}
        content.append(use)
    return {
        **_message(model, number),
        "content": content,
        "stop_reason": stop_reason(reply),
        "usage": usage(reply, size),
    }


def opening(reply: Reply, model: str, number: int, size: int) -> Iterator[bytes]:
    """What comes before the content."""
    counted = {**usage(reply, size), "output_tokens": 1 if reply.report_usage else 0}
    message = {**_message(model, number), "usage": counted}
    yield _event("message_start", {"message": message})
    yield _event("ping", {})


def deltas(reply: Reply) -> Iterator[bytes]:
    """The events that carry content. Opening and closing of a block go with their neighbour."""
    index, current = -1, ("", -1)
    for kind, call, text in events(reply):
        prefix = b""
        if (kind, call) != current:
            if index >= 0:
                prefix = _close(reply, index, current[0])
            index, current = index + 1, (kind, call)
            block = _start_block(reply, kind, call)
            start = {"index": index, "content_block": block}
            prefix += _event("content_block_start", start)
        if text:
            prefix += _event("content_block_delta", {"index": index, "delta": _delta(kind, text)})
        yield prefix
    if index >= 0:
        yield _close(reply, index, current[0])


def closing(reply: Reply, size: int) -> Iterator[bytes]:
    """What comes after the content."""
    delta: dict[str, Any] = {"stop_reason": stop_reason(reply), "stop_sequence": None}
    if reply.refusal:
        delta["stop_details"] = {"type": "refusal", "explanation": reply.refusal, "category": None}
    yield _event("message_delta", {"delta": delta, "usage": usage(reply, size)})
    yield _event("message_stop", {})


def error_event(fault: Fault) -> bytes:
    """An error inside the stream."""
    return _event("error", error_body(fault))


def _start_block(reply: Reply, kind: str, call: int) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "thinking", "thinking": "", "signature": ""}
    if kind == "text":
        return {"type": "text", "text": ""}
    one = reply.calls[call]
    return {"type": "tool_use", "id": one.id, "name": one.name, "input": {}}


def _delta(kind: str, text: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "thinking_delta", "thinking": text}
    if kind == "text":
        return {"type": "text_delta", "text": text}
    return {"type": "input_json_delta", "partial_json": text}


def _close(reply: Reply, index: int, kind: str) -> bytes:
    prefix = b""
    if kind == "reasoning":
        delta = {"type": "signature_delta", "signature": signature(reply.reasoning)}
        prefix = _event("content_block_delta", {"index": index, "delta": delta})
    return prefix + _event("content_block_stop", {"index": index})


def _message(model: str, number: int) -> dict[str, Any]:
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _event(name: str, data: dict[str, Any]) -> bytes:
    payload = json.dumps({"type": name, **data}, ensure_ascii=False)
    return f"event: {name}\ndata: {payload}\n\n".encode()
