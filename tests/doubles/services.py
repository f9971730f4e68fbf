"""Rules and error formats of known services beyond those of OpenAI.

Written from reports of their users and from their documentation, not from Strata's presets: a
preset that is wrong about a service fails here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from doubles.script import Fault

Body = Mapping[str, Any]
_MISTRAL_ID = re.compile(r"[a-zA-Z0-9]{9}")
_MISTRAL_FIELDS = {
    *("model", "messages", "temperature", "top_p", "max_tokens", "stream", "stop", "random_seed"),
    *("response_format", "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort"),
}
_MESSAGE_FIELDS = {"role", "content", "tool_calls", "tool_call_id"}
_GEMINI_FIELDS = {
    *("model", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens"),
    *("temperature", "top_p", "n", "stop", "tools", "tool_choice", "response_format"),
    *("reasoning_effort", "extra_body"),
}
_GEMINI_SCHEMA = {
    *("type", "format", "title", "description", "nullable", "enum", "maxItems", "minItems"),
    *("properties", "required", "minProperties", "maxProperties", "minLength", "maxLength"),
    *("pattern", "example", "anyOf", "propertyOrdering", "default", "items", "minimum", "maximum"),
}
_GEMINI_UNSIGNED = "skip_thought_signature_validator"
_GROQ_REFUSES = ("logprobs", "logit_bias", "top_logprobs", "store")


def refusal(service: str, body: Body) -> Fault | None:
    """Returns the refusal of a request by a service; None if it is accepted."""
    return _RULES[service](body) if service else None


def _mistral(body: Body) -> Fault | None:
    for name in body:
        if name not in _MISTRAL_FIELDS:
            detail = {"type": "extra_forbidden", "loc": ["body", name]}
            detail["msg"] = "Extra inputs are not permitted"
            return _mistral_error(422, {"detail": [detail]}, "invalid_request_error", None)
    return _mistral_messages(body)


def _mistral_messages(body: Body) -> Fault | None:
    before = ""
    for message in body["messages"]:
        role = message["role"]
        extra = set(message) - _MESSAGE_FIELDS
        if extra:
            text = f"Extra inputs are not permitted: {sorted(extra)}"
            return _mistral_error(422, text, "invalid_request_error", None)
        for one in message.get("tool_calls") or ():
            if not _MISTRAL_ID.fullmatch(one["id"]):
                text = (
                    f"Tool call id was {one['id']} but must be a-z, A-Z, 0-9, with a length of 9."
                )
                return _mistral_error(400, text, "invalid_function_call", "3280")
        if (before, role) == ("tool", "user") or (role == "system" and before):
            text = f"Unexpected role '{role}' after role '{before}'"
            return _mistral_error(400, text, "invalid_request_message_order", "3230")
        before = role
    if before not in ("user", "tool"):
        text = (
            "Expected last role User or Tool (or Assistant with prefix True) for serving but got"
            f" {before}"
        )
        return _mistral_error(400, text, "invalid_request_message_order", "3230")
    return None


def _mistral_error(status: int, message: Any, kind: str, code: str | None) -> Fault:
    body = {"object": "error", "message": message, "type": kind, "param": None, "code": code}
    return Fault(status, str(message), kind, body=body)


def _deepseek(body: Body) -> Fault | None:
    thinking = body.get("thinking", {}).get("type") != "disabled"
    if body.get("response_format", {}).get("type") == "json_schema":
        return _invalid("This response_format type is unavailable now")
    choice = body.get("tool_choice", "auto")
    if thinking and choice not in ("auto", "none"):
        return _invalid("Thinking mode does not support this tool_choice")
    if body.get("response_format") and "json" not in str(body["messages"]).lower():
        return _invalid("Prompt must contain the word 'json' in some form to use 'response_format'")
    if thinking and body.get("tools"):
        users = [n for n, one in enumerate(body["messages"]) if one["role"] == "user"]
        for number, message in enumerate(body["messages"]):
            of_turn = bool(message.get("tool_calls")) or number > max(users, default=0)
            if message["role"] == "assistant" and of_turn and "reasoning_content" not in message:
                return _invalid(
                    "The `reasoning_content` in the thinking mode must be passed back to the API."
                )
    return None


def _xai(body: Body) -> Fault | None:
    if "reasoning_effort" in body and "reasons" not in body["model"]:
        text = f"Model {body['model']} does not support parameter reasoningEffort."
        answer = {"code": "Client specified an invalid argument", "error": text}
        return Fault(400, text, body=answer)
    return None


def _groq(body: Body) -> Fault | None:
    for name in _GROQ_REFUSES:
        if name in body:
            return _invalid(f"property '{name}' is unsupported")
    if "response_format" in body and body.get("tools"):
        return _invalid("json mode cannot be combined with tool/function calling")
    if "response_format" in body and body.get("stream"):
        return _invalid("response_format` does not support streaming")
    for number, message in enumerate(body["messages"]):
        for name in sorted(set(message) - _MESSAGE_FIELDS):
            return _invalid(
                f"'messages.{number}' : for 'role:{message['role']}' the following must be"
                f" satisfied[('messages.{number}' : property '{name}' is unsupported)]"
            )
    return None


def _templates(body: Body) -> Fault | None:
    """The chat templates of several model families that local servers run."""
    if "response_format" in body and body.get("tools"):
        # Others do not refuse it: the grammar of the reply keeps the model from calling anything.
        return _invalid("Cannot use custom grammar constraints with tools.")
    before = ""
    for message in body["messages"]:
        role = message["role"]
        if role == "system" and before:
            return _invalid("System message must be at the beginning.")
        if role == before == "user":
            return _invalid("Conversation roles must alternate user/assistant/user/assistant/...")
        before = role
    return None


def _lmstudio(body: Body) -> Fault | None:
    if not isinstance(body.get("tool_choice", ""), str):
        text = "Invalid tool_choice type: 'object'. Supported string values: none, auto, required"
        return Fault(400, text, body={"error": text})
    return _templates(body)


def _openrouter(body: Body) -> Fault | None:
    if len({"effort", "max_tokens"} & set(body.get("reasoning", {}))) > 1:
        return _invalid("Only one of effort and max_tokens may be set")
    return _mistral_messages(body) if body["model"].startswith("mistralai/") else None


def gemini_signature(name: str, arguments: str) -> str:
    """Returns the signature of a call by Gemini."""
    return hashlib.sha256(f"gemini:{name}:{json.loads(arguments)}".encode()).hexdigest()


def _gemini(body: Body) -> Fault | None:
    for name in body:
        if name not in _GEMINI_FIELDS:
            return _google_error(f'Unknown name "{name}": Cannot find field.')
    if body.get("reasoning_effort", "low") not in ("none", "minimal", "low", "medium", "high"):
        return _google_error("Invalid reasoning_effort")
    if "reasoning_effort" in body and "extra_body" in body:
        return _google_error("Only one of reasoning_effort and thinking_config may be set")
    for number, tool in enumerate(body.get("tools", ())):
        where = f"tools[0].function_declarations[{number}].parameters"
        parameters = tool["function"].get("parameters")
        if parameters is not None and not parameters.get("properties"):
            return _google_error(f"{where}.properties: should be non-empty for OBJECT type")
        if parameters is not None and (problem := _gemini_schema(parameters, where)):
            return _google_error(problem)
    if "response_format" in body and body.get("tools"):
        return _google_error(
            "Function calling with a response mime type: 'application/json' is unsupported"
        )
    form = body.get("response_format", {}).get("json_schema")
    if form is not None and (problem := _gemini_schema(form["schema"], "response_schema")):
        return _google_error(problem)
    return _gemini_messages(body)


def _gemini_schema(schema: Mapping[str, Any], where: str) -> str:
    """Returns the problem of a schema."""
    for name in schema:
        if name not in _GEMINI_SCHEMA:
            return f"Invalid JSON payload received. Unknown name \"{name}\" at '{where}'"
    kind = schema.get("type", "")
    if not isinstance(kind, str):
        return f"Proto field is not repeating, cannot start list. at '{where}.type'"
    if "enum" in schema and (kind != "string" or not all(schema["enum"])):
        return f"{where}.enum: only allowed for STRING type, without empty values"
    if kind == "object" and not schema.get("properties"):
        return f"{where}.properties: should be non-empty for OBJECT type"
    if kind == "array" and "items" not in schema:
        return f"{where}.items: missing field."
    if kind == "string" and schema.get("format", "enum") not in ("enum", "date-time"):
        return f"{where}: only 'enum' and 'date-time' are supported for STRING type"
    for name in schema.get("required", ()):
        if name not in schema.get("properties", {}):
            return f"{where}.required[0]: property is not defined"
    inner = [*schema.get("properties", {}).items(), *enumerate(schema.get("anyOf", ()))]
    if "items" in schema:
        inner.append(("items", schema["items"]))
    problems = (_gemini_schema(value, f"{where}.{name}") for name, value in inner)
    return next(filter(None, problems), "")


def _gemini_messages(body: Body) -> Fault | None:
    before = ""
    for message in body["messages"]:
        calls = message.get("tool_calls") or ()
        if calls and before not in ("user", "tool"):
            return _google_error(
                "Please ensure that function call turn comes immediately after a user turn or after"
                " a function response turn."
            )
        for number, one in enumerate(calls):
            google = one.get("extra_content", {}).get("google", {})
            signature = google.get("thought_signature", "")
            own = gemini_signature(one["function"]["name"], one["function"]["arguments"])
            is_old = body["model"].startswith("gemini-2")
            if not signature and not number and not is_old:
                name = one["function"]["name"]
                return _google_error(f"Function call `{name}` is missing a `thought_signature`.")
            if signature not in ("", own) and (is_old or signature != _GEMINI_UNSIGNED):
                return _google_error("Thought signature is not valid.")
        before = message["role"]
    if before not in ("user", "tool"):
        return _google_error("Please ensure that multiturn requests end with a user turn.")
    return None


def _google_error(message: str) -> Fault:
    error = {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}
    return Fault(400, message, body=[{"error": error}])


def _takes_all(body: Body) -> None:
    return None


def _invalid(message: str) -> Fault:
    return Fault(400, message, "invalid_request_error", "invalid_request_error")


_RULES: dict[str, Callable[[Body], Fault | None]] = {
    "openai": _takes_all,
    "azure": _takes_all,
    "bedrock": _takes_all,
    "vertex": _takes_all,
    "mistral": _mistral,
    "deepseek": _deepseek,
    "xai": _xai,
    "gemini": _gemini,
    "groq": _groq,
    "together": _takes_all,
    "fireworks": _takes_all,
    "openrouter": _openrouter,
    "ollama": _takes_all,
    "lmstudio": _lmstudio,
    "llamacpp": _templates,
    "vllm": _templates,
}
