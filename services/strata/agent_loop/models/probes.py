"""Probes a model: requests data from its server, and sends test requests to the model.

All servers have a list of models. Additional routes of local servers are requested if the
endpoint may be such a server; routes that do not answer give no finding.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx2

from strata.agent_loop.domain.model.chat import (
    DEFAULT_ENDPOINT_TYPE,
    ChatMessage,
    ChatModel,
    ModelReply,
    ModelRequest,
    ToolChoice,
    ToolSchema,
)
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind
from strata.agent_loop.domain.model.usage_count import Count, uncounted
from strata.agent_loop.models.presets.table import PRESETS
from strata.agent_loop.models.registry import ModelEndpoint

MODEL_SECONDS = 90.0
"""Time limit of the requests to a model, which may have to be loaded first."""

SECONDS = 5.0
"""Time limit of each request to a server."""

_MAX_BYTES = 4 * 1024 * 1024
_MAX_TOKENS = 1_000_000_000
_REPLY_TOKENS = 256
_NUM_CTX = re.compile(r"^num_ctx\s+(\d{1,9})\s*$", re.MULTILINE)
_TOOL = ToolSchema(
    "report_ready",
    "Reports that you are ready.",
    {
        "type": "object",
        "properties": {"ready": {"type": "boolean", "description": "Whether you are."}},
        "required": ["ready"],
    },
)


@dataclass(frozen=True, slots=True)
class ModelFinding:
    """One fact about a model.

    Attributes:
        name: Its name, such as ``context window``.
        value: The value as text.
        source: Its source: a route of the server, ``settings`` or ``a request``.
        tokens: The value, if it is a number of tokens; else 0.
    """

    name: str
    value: str
    source: str
    tokens: int = 0


def documented(endpoint: ModelEndpoint, model: str) -> list[ModelFinding]:
    """Returns the findings from the settings and the table of known models."""
    limits, findings = endpoint.documented_limits(model), []
    if endpoint.context_window:
        findings.append(_window("context window", endpoint.context_window, "settings"))
    if limits is not None:
        findings.append(_window("context window", limits.context_window, "table"))
        findings.append(_window("longest reply", limits.max_output_tokens, "table"))
    return findings


async def ask_server(endpoint: ModelEndpoint, model: str) -> list[ModelFinding]:
    """Requests the additional routes of Ollama, LM Studio and llama.cpp.

    Args:
        endpoint: The endpoint.
        model: The model's name there.

    Returns:
        The findings; empty for hosted services, which have no such routes, and for endpoints with
        other dialects than OpenAI's, whose keys must not be sent in the same way.
    """
    preset = PRESETS.get(endpoint.preset)
    is_local = endpoint.type == DEFAULT_ENDPOINT_TYPE if preset is None else preset.local
    if not endpoint.base_url or not is_local:
        return []
    root = endpoint.base_url.rstrip("/").removesuffix("/v1")
    headers = {"authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
    findings: list[ModelFinding] = []
    async with httpx2.AsyncClient(headers=headers, timeout=SECONDS) as client:
        details = await _read(client, "POST", f"{root}/api/show", {"model": model})
        findings += _of_ollama(details)
        if not findings:
            # Model names have slashes, which must not lead to other routes.
            path = "/".join(quote(part, safe="") for part in model.split("/") if part.strip("."))
            findings += _of_lm_studio(await _read(client, "GET", f"{root}/api/v0/models/{path}"))
        if not findings:
            findings += _of_llama_cpp(await _read(client, "GET", f"{root}/props"))
    return findings


async def ask_model(chat: ChatModel, handle: str, count: Count = uncounted) -> list[ModelFinding]:
    """Sends two tiny requests: one for a word, one for a tool call.

    Args:
        chat: The model.
        handle: Its handle.
        count: Counts the tokens of each reply.

    Raises:
        ModelError: The model does not answer; TIMEOUT after `MODEL_SECONDS`.
    """
    try:
        async with asyncio.timeout(MODEL_SECONDS):
            return await _ask(_Asker(chat, handle, count))
    except TimeoutError as error:
        message = f"It did not complete its reply within {MODEL_SECONDS:g} s."
        raise ModelError(ModelErrorKind.TIMEOUT, message) from error


async def _ask(asker: _Asker) -> list[ModelFinding]:
    plain = ModelRequest([ChatMessage.user("Answer with the word OK.")], max_tokens=_REPLY_TOKENS)
    reply = await asker.reply(plain)
    tokens = f"{reply.usage.prompt_tokens} tokens in, {reply.usage.completion_tokens} out"
    findings = [ModelFinding("answers", f"yes ({tokens})", "a request")]
    if reply.model:
        findings.append(ModelFinding("name in replies", reply.model, "a request"))
    if reply.reasoning or reply.usage.reasoning_tokens:
        findings.append(ModelFinding("reasoning", "yes", "a request"))
    calling = ModelRequest(
        [ChatMessage.user("Report that you are ready.")],
        (_TOOL,),
        ToolChoice.required(),
        max_tokens=_REPLY_TOKENS,
    )
    try:
        called = (await asker.reply(calling)).tool_calls
        tools = "yes" if called else "no: it answered without the requested call"
    except ModelError as error:
        tools = f"no: {error.message}"
    return [*findings, ModelFinding("tool calls", tools, "a request")]


@dataclass(frozen=True, slots=True)
class _Asker:
    """A model whose replies are counted; see `ask_model`."""

    chat: ChatModel
    handle: str
    count: Count

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Returns the reply to a request."""
        async with aclosing(self.chat.stream(request)) as events:
            async for event in events:
                if isinstance(event, ModelReply):
                    await self.count(event.usage, self.handle)
                    return event
        raise ModelError(ModelErrorKind.CUT_OFF, "The reply has no end.")


async def _read(
    client: httpx2.AsyncClient, method: str, url: str, body: Any = None
) -> Mapping[str, Any]:
    """Returns the JSON object at a route; empty if there is none."""
    try:
        # The client's own timeout applies to each read.
        async with asyncio.timeout(SECONDS), client.stream(method, url, json=body) as response:
            if response.status_code != httpx2.codes.OK:
                return {}
            content = b""
            async for piece in response.aiter_bytes():
                content += piece
                if len(content) > _MAX_BYTES:
                    return {}
        return _object(json.loads(content))
    except (httpx2.HTTPError, TimeoutError, ValueError, RecursionError):
        return {}


def _of_ollama(details: Mapping[str, Any]) -> list[ModelFinding]:
    source = "POST /api/show"
    findings = [
        _window("longest context window", value, source)
        for name, value in _object(details.get("model_info")).items()
        if name.endswith(".context_length") and _is_count(value)
    ]
    findings += [
        _window("context window", int(size), source)
        for size in _NUM_CTX.findall(str(details.get("parameters") or ""))
        if _is_count(int(size))
    ]
    capabilities = details.get("capabilities")
    if isinstance(capabilities, list) and capabilities:
        capability_names = ", ".join(str(capability) for capability in capabilities[:16])
        findings.append(ModelFinding("capabilities", capability_names, source))
    return findings


def _of_lm_studio(described: Mapping[str, Any]) -> list[ModelFinding]:
    source = "GET /api/v0/models/NAME"
    names = {
        "loaded_context_length": "context window",
        "max_context_length": "longest context window",
    }
    findings = [
        _window(name, described[key], source)
        for key, name in names.items()
        if _is_count(described.get(key))
    ]
    if findings and described.get("type"):
        findings.append(ModelFinding("kind", str(described["type"]), source))
    return findings


def _of_llama_cpp(props: Mapping[str, Any]) -> list[ModelFinding]:
    source = "GET /props"
    window = _object(props.get("default_generation_settings")).get("n_ctx")
    findings = [_window("context window", window, source)] if _is_count(window) else []
    has_vision = _object(props.get("modalities")).get("vision")
    if isinstance(has_vision, bool):
        findings.append(ModelFinding("images", "yes" if has_vision else "no", source))
    return findings


def _window(name: str, tokens: Any, source: str) -> ModelFinding:
    return ModelFinding(name, f"{tokens:,} tokens", source, tokens)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MAX_TOKENS


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
