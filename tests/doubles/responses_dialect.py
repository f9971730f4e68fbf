"""OpenAI's Responses API without storage: the checks of requests and the forms of answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from doubles import openai_dialect
from doubles.openai_dialect import RefusedError
from doubles.script import Fault, Reply, events

error_body = openai_dialect.error_body

_FIELDS = {
    *("model", "input", "instructions", "store", "stream", "include", "temperature", "top_p"),
    *("max_output_tokens", "reasoning", "text", "tools", "tool_choice", "parallel_tool_calls"),
    *("metadata", "prompt_cache_key", "previous_response_id", "truncation"),
}
_ITEM_FIELDS = {
    "message": {"type", "role", "content", "phase"},
    "reasoning": {"type", "summary", "encrypted_content", "content"},
    "function_call": {"type", "call_id", "name", "arguments", "status"},
    "function_call_output": {"type", "call_id", "output", "status"},
}
_LONGEST_CALL_ID = 64
_EFFORTS = {"none", "minimal", "low", "medium", "high", "xhigh", "max"}


def encrypted(reasoning: str, account: str) -> str:
    """Returns encrypted reasoning, which only the same account can send back."""
    return "gAAAA" + hashlib.sha256(f"{account}:{reasoning}".encode()).hexdigest()


def check(body: Any, account: str = "") -> None:
    """Raises an error for a request that the API refuses, and for some that it tolerates.

    Args:
        body: The request.
        account: The account of its key.

    Raises:
        RefusedError: With the rule that was broken.
    """
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        raise RefusedError("Missing required parameter: 'model'.", "model")
    for name in body:
        if name not in _FIELDS:
            raise RefusedError(f"Unknown parameter: '{name}'.", name)
    limit = body.get("max_output_tokens", 16)
    if limit < 16:
        raise RefusedError(
            f"Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16,"
            f" but got {limit} instead.",
            "max_output_tokens",
        )
    if body.get("reasoning", {}).get("effort", "low") not in _EFFORTS:
        raise RefusedError("Invalid value for 'reasoning.effort'", "reasoning.effort")
    if body.get("store") is not False and "previous_response_id" not in body:
        raise RefusedError("these tests want nothing to be stored", "store")
    _check_format(body)
    _check_tools(body)
    _check_input(body.get("input"), account)


def _check_format(body: Mapping[str, Any]) -> None:
    form = body.get("text", {}).get("format")
    if form is None:
        return
    if form["type"] == "json_schema":
        openai_dialect.refuse_old_model(body["model"], "text.format")
        openai_dialect.check_schema_format(form, "text.format")
    elif form["type"] != "json_object" or set(form) != {"type"}:
        raise RefusedError("Unknown parameter in 'text.format'.", "text.format")
    elif "json" not in json.dumps(body["input"]).lower():
        # The instructions are ignored.
        raise RefusedError(
            "Response input messages must contain the word 'json' in some form to use"
            " 'text.format' of type 'json_object'.",
            "input",
        )


def _check_tools(body: Mapping[str, Any]) -> None:
    tools = body.get("tools")
    if tools is None:
        if "tool_choice" in body:
            raise RefusedError("Tool choices are not allowed without tools.", "tool_choice")
        return
    for number, tool in enumerate(tools):
        if "function" in tool or "name" not in tool:
            raise RefusedError(f"Missing required parameter: 'tools[{number}].name'.", "tools")
        if not isinstance(tool.get("strict"), bool):
            raise RefusedError("'strict' would be true where it is left out", "tools")
    # The rest is as in chat completions.
    choice = body.get("tool_choice", "auto")
    if isinstance(choice, dict):
        if "function" in choice:
            raise RefusedError("Missing required parameter: 'tool_choice.name'.", "tool_choice")
        choice = {"type": "function", "function": {"name": choice["name"]}}
    functions = [{"type": "function", "function": tool} for tool in tools]
    openai_dialect.check_tools({"tools": functions, "tool_choice": choice})


def _check_input(items: Any, account: str) -> None:
    if not items:
        raise RefusedError("Missing required parameter: 'input'.", "input")
    waiting: list[str] = []
    seen: set[str] = set()
    for number, item in enumerate(items):
        kind = item.get("type", "message")
        where = f"input[{number}]"
        if "id" in item:
            raise RefusedError(
                f"Item with id '{item['id']}' not found. Items are not persisted when `store` is"
                " set to false.",
                where,
            )
        unknown = set(item) - _ITEM_FIELDS[kind]
        if unknown:
            raise RefusedError(f"Unknown parameter: '{where}.{min(unknown)}'.", where)
        if kind == "reasoning":
            _check_reasoning(items, number, account)
        elif kind == "function_call":
            _check_call(item, seen, where)
            waiting.append(item["call_id"])
        elif kind == "function_call_output":
            if item["call_id"] not in waiting:
                raise RefusedError(
                    f"No tool call found for function call output with call_id {item['call_id']}.",
                    "input",
                )
            waiting.remove(item["call_id"])
            _check_content(item["output"], "tool", where)
        else:
            if waiting:
                break
            if item["role"] not in ("user", "assistant", "system", "developer"):
                raise RefusedError(f"Invalid value: '{item['role']}'.", where)
            _check_content(item["content"], item["role"], where)
    if waiting:
        raise RefusedError(f"No tool output found for function call {waiting[0]}.", "input")


def _check_reasoning(items: Sequence[Mapping[str, Any]], number: int, account: str) -> None:
    item = items[number]
    if not isinstance(item.get("summary"), list):
        raise RefusedError(f"Missing required parameter: 'input[{number}].summary'.", "input")
    following = items[number + 1] if number + 1 < len(items) else {}
    if not (
        following.get("type") in ("function_call", "reasoning")
        or following.get("role") == "assistant"
    ):
        raise RefusedError(
            "Item of type 'reasoning' was provided without its required following item.", "input"
        )
    text = "\n\n".join(part["text"] for part in item["summary"])
    if item["encrypted_content"] != encrypted(text, account):
        shown = f"{item['encrypted_content'][:4]}...{item['encrypted_content'][-4:]}"
        refused = RefusedError(f"The encrypted content {shown} could not be verified.")
        refused.fault = Fault(
            400, str(refused), "invalid_request_error", "invalid_encrypted_content"
        )
        raise refused


def _check_call(item: Mapping[str, Any], seen: set[str], where: str) -> None:
    call_id = item["call_id"]
    if not call_id or call_id in seen or len(call_id) > _LONGEST_CALL_ID:
        raise RefusedError(f"Invalid '{where}.call_id': {call_id!r}", where)
    seen.add(call_id)
    if not isinstance(json.loads(item["arguments"]), dict):
        raise RefusedError("arguments of an earlier call are not an object", where)


def _check_content(content: Any, role: str, where: str) -> None:
    if isinstance(content, str):
        return
    if role in ("assistant", "system") or not content:
        raise RefusedError(f"Invalid value for '{where}.content'", where)
    for part in content:
        if part["type"] == "input_text":
            if not part["text"]:
                raise RefusedError("text is empty", where)
        elif part["type"] == "input_image":
            openai_dialect.check_image({"url": part["image_url"], "detail": part["detail"]}, where)
        else:
            raise RefusedError(f"Invalid value: '{part['type']}'.", where)


def _outcome(reply: Reply) -> dict[str, Any]:
    if reply.finish:
        return {"status": "incomplete", "incomplete_details": {"reason": reply.finish}}
    return {"status": "completed", "incomplete_details": None}


def _usage(reply: Reply, size: int) -> dict[str, Any]:
    chat = openai_dialect.usage(reply, size)
    return {
        "input_tokens": chat["prompt_tokens"],
        "input_tokens_details": {**chat["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": chat["completion_tokens"],
        "output_tokens_details": chat["completion_tokens_details"],
        "total_tokens": chat["total_tokens"],
    }


def opening(model: str, number: int) -> Iterator[bytes]:
    """What comes before the content."""
    for kind in ("created", "in_progress"):
        response = {**_response(model, number), "status": "in_progress"}
        yield _event(f"response.{kind}", {"response": response})


def deltas(reply: Reply, account: str) -> Iterator[bytes]:
    """The events that carry content. Opening and closing of an item go with their neighbour."""
    position, current = -1, ("", -1)
    for kind, call, text in [("refusal", 0, reply.refusal)] * bool(reply.refusal) + events(reply):
        prefix = b""
        if (kind, call) != current:
            if position >= 0:
                prefix = _close(reply, position, current, account)
            position, current = position + 1, (kind, call)
            item = _item(reply, kind, call, account, done=False)
            prefix += _event("response.output_item.added", {"output_index": position, "item": item})
        if text:
            name = _DELTAS[kind]
            prefix += _event(name, {"output_index": position, "item_id": "x", "delta": text})
        yield prefix
    if position >= 0:
        yield _close(reply, position, current, account)


_DELTAS = {
    "reasoning": "response.reasoning_summary_text.delta",
    "text": "response.output_text.delta",
    "refusal": "response.refusal.delta",
    "call": "response.function_call_arguments.delta",
}


def closing(reply: Reply, model: str, number: int, size: int) -> Iterator[bytes]:
    """What comes after the content."""
    response = {**_response(model, number), **_outcome(reply)}
    if reply.report_usage:
        response["usage"] = _usage(reply, size)
    yield _event(f"response.{response['status']}", {"response": response})


def error_event(fault: Fault) -> bytes:
    """An error inside the stream."""
    fields = {"code": fault.code or fault.type, "message": fault.message, "param": fault.param}
    return _event("error", fields)


def _close(reply: Reply, position: int, current: tuple[str, int], account: str) -> bytes:
    item = _item(reply, *current, account, done=True)
    return _event("response.output_item.done", {"output_index": position, "item": item})


def _item(reply: Reply, kind: str, call: int, account: str, *, done: bool) -> dict[str, Any]:
    status = "completed" if done else "in_progress"
    if kind == "reasoning":
        summary = [{"type": "summary_text", "text": reply.reasoning}] if done else []
        sealed = encrypted(reply.reasoning, account) if done else "gAAAA-incomplete"
        return {"id": "rs_1", "type": kind, "summary": summary, "encrypted_content": sealed}
    if kind in ("text", "refusal"):
        whole = reply.text if kind == "text" else reply.refusal
        part: dict[str, Any] = {
            "type": "output_text" if kind == "text" else "refusal",
            "annotations": [],
        }
        part["text" if kind == "text" else "refusal"] = whole
        content = [part] if done else []
        frame = {"id": "msg_1", "type": "message", "role": "assistant"}
        return {**frame, "status": status, "content": content}
    one = reply.calls[call]
    arguments = one.raw if done else ""
    frame = {"id": f"fc_{call}", "type": "function_call", "status": status}
    fields = {"call_id": one.id if reply.call_ids else "", "name": one.name}
    return {**frame, **fields, "arguments": arguments}


def _response(model: str, number: int) -> dict[str, Any]:
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1_700_000_000,
        "model": model,
        "error": None,
        "output": [],
        "usage": None,
    }


def _event(kind: str, fields: Mapping[str, Any]) -> bytes:
    payload = json.dumps({"type": kind, "sequence_number": 0, **fields}, ensure_ascii=False)
    return f"event: {kind}\ndata: {payload}\n\n".encode()
