"""Parses and validates requests of clients."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_STOPS = 4
DEFAULT_MAX_TOKENS = 1024
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


class ApiError(Exception):
    """An error that is sent to the client in the form of the OpenAI API."""

    def __init__(self, status: int, message: str, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {
            "error": {
                "message": message,
                "type": "invalid_request_error" if status < 500 else "server_error",
                "code": code,
                "param": param,
            }
        }


@dataclass(frozen=True)
class Sampling:
    """The sampling parameters. `schema` is a JSON schema as text that the reply must satisfy."""

    temperature: float = 0.7
    top_p: float = 1.0
    seed: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    schema: str | None = None


@dataclass(frozen=True)
class ChatRequest:
    """A validated request."""

    segments: Sequence[tuple[str, bool]]
    sampling: Sampling
    max_tokens: int
    stops: Sequence[str]
    stream: bool
    include_usage: bool


def parse_chat(body: Mapping[str, Any]) -> ChatRequest:
    """Parses a request body. Raises ApiError, which names the wrong field."""
    for name in ("tools", "functions"):
        if body.get(name):
            message = (
                "this model has no native tool calls: describe the tools in the prompt and "
                "constrain the reply with response_format json_schema"
            )
            raise ApiError(400, message, "unsupported_parameter", name)
    if body.get("n") not in (None, 1) or body.get("logprobs"):
        raise ApiError(400, "n above 1 and logprobs are not supported", "unsupported_parameter")
    options = body.get("stream_options")
    return ChatRequest(
        segments=chat_segments(body.get("messages")),
        sampling=Sampling(
            temperature=_number(body, "temperature", 0.7, 0.0, 2.0),
            top_p=_number(body, "top_p", 1.0, 0.0, 1.0),
            seed=_seed(body.get("seed")),
            frequency_penalty=_number(body, "frequency_penalty", 0.0, -2.0, 2.0),
            presence_penalty=_number(body, "presence_penalty", 0.0, -2.0, 2.0),
            schema=_schema(body.get("response_format")),
        ),
        max_tokens=_max_tokens(body),
        stops=_stops(body.get("stop")),
        stream=body.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
    )


def chat_segments(messages: object) -> list[tuple[str, bool]]:
    """Formats messages in ChatML, the format that this model was trained on.

    The template in the model's file is not used, because it adds a persona and expects native
    tools. Markers are separate segments, so that text that looks like a marker cannot start a
    message of another role.
    """
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages must be a non-empty list", "invalid_value", "messages")
    segments: list[tuple[str, bool]] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            expected = ", ".join(ROLES)
            raise ApiError(400, f"{where}.role must be one of {expected}", "invalid_value", where)
        if message.get("tool_calls"):
            raise ApiError(400, f"{where}: no native tool calls", "invalid_value", where)
        text = _text(message.get("content"), where)
        segments += [("<|im_start|>", True), (f"{ROLES[message['role']]}\n{text}", False)]
        segments += [("<|im_end|>", True), ("\n", False)]
    return [*segments, ("<|im_start|>", True), ("assistant\n", False)]


def _text(content: object, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        if len(texts) == len(content) and all(isinstance(text, str) for text in texts):
            return "".join(str(text) for text in texts)
    raise ApiError(400, f"{where}.content must be text", "invalid_value", where)


def _number(body: Mapping[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ApiError(400, f"{name} must be between {low} and {high}", "invalid_value", name)
    return float(value)


def _seed(value: object) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise ApiError(400, "seed must be a whole number", "invalid_value", "seed")
    return value


def _max_tokens(body: Mapping[str, Any]) -> int:
    name = "max_tokens" if body.get("max_completion_tokens") is None else "max_completion_tokens"
    value = body.get(name)
    if value is None:
        return DEFAULT_MAX_TOKENS
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ApiError(400, f"{name} must be a positive whole number", "invalid_value", name)
    return value


def _stops(value: object) -> list[str]:
    stops = [value] if isinstance(value, str) else value or []
    if (
        not isinstance(stops, list)
        or len(stops) > MAX_STOPS
        or not all(isinstance(stop, str) and stop for stop in stops)
    ):
        raise ApiError(400, f"stop must be up to {MAX_STOPS} texts", "invalid_value", "stop")
    return stops


def _schema(response_format: object) -> str | None:
    if response_format is None:
        return None
    kind = response_format.get("type") if isinstance(response_format, dict) else None
    if isinstance(response_format, dict) and kind == "text":
        return None
    if isinstance(response_format, dict) and kind == "json_object":
        return json.dumps(response_format.get("schema") or {"type": "object"})
    if isinstance(response_format, dict) and kind == "json_schema":
        wrapper = response_format.get("json_schema")
        schema = wrapper.get("schema") if isinstance(wrapper, dict) else None
        if isinstance(schema, dict):
            return json.dumps(schema)
    message = "response_format must be of type text, json_object or json_schema with a schema"
    raise ApiError(400, message, "invalid_value", "response_format")
