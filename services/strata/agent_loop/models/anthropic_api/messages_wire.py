"""Builds the request body of Anthropic's messages API. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

from strata.agent_loop.domain.model.chat import (
    ChatMessage,
    ChatRole,
    ModelRequest,
    ModelSettings,
    ReasoningPart,
    ShownImage,
    ToolChoice,
    ToolChoiceMode,
    ToolSchema,
)
from strata.agent_loop.domain.model.proofs import is_marked
from strata.agent_loop.domain.model.quirks import ReplyForm
from strata.agent_loop.models.anthropic_api.closed_schema import to_closed
from strata.agent_loop.models.conversation_repair import (
    CONTINUE,
    OPENING,
    argument_object,
    leading_system,
    repair,
    without_system_role,
)
from strata.agent_loop.models.offered_tool import offered_tool
from strata.agent_loop.models.refused_parameters import Refusals
from strata.agent_loop.models.reply_forms import ReplyForms, with_instruction

DEFAULT_MAX_TOKENS = 8192
MIN_THINKING_BUDGET = 1024

THINKING, EFFORT = "thinking", "output_config.effort"
"""Optional settings, which are left out after a model refused them."""

FORCED_THINKING = "thinking with a forced call"
"""Thinking in a request that forces a call, which a model or a cloud may refuse."""

FORCED_CALL = "tool_choice"
"""A forced call, which the newest models refuse: the prompt requests it instead."""

_ASKED = "Answer with a call of one of your tools, not with text."
_ASKED_FOR = "Answer with a call of the tool `{}`, not with text."
_SETTINGS = {THINKING: re.compile(r"\bthinking\b"), EFFORT: re.compile(r"\beffort\b")}
_NOT_TAKEN = re.compile(
    r"not support|unsupported|not permitted|Input should be|does not match any of the expected",
    re.IGNORECASE,
)
_CHOICE = re.compile(r"\btool_choice\b.*not supported")
_FORCED = re.compile(r"tool_choice forces tool use")
_CACHED = {"type": "ephemeral"}
_VERSION = re.compile(r"claude-(?:[a-z]+-)?(\d+)(?:[-.](\d{1,2}))?(?!\d)")
_EFFORTS = {"minimal": "low"}


def refused_setting(message: str, body: Mapping[str, Any]) -> str:
    """Returns the setting of a request that a model refused; empty for none.

    Errors of this API name the setting only in their text.

    Args:
        message: Text of the error.
        body: The refused request.
    """
    if _FORCED.search(message):
        return FORCED_THINKING if "thinking" in body else ""
    if _CHOICE.search(message):
        return FORCED_CALL if sent(body, FORCED_CALL) in ("any", "tool") else ""
    if not _NOT_TAKEN.search(message):
        return ""
    # An error about one of them may recommend the other one later in the text.
    places = {
        name: match.start()
        for name, pattern in _SETTINGS.items()
        if sent(body, name) is not None and (match := pattern.search(message))
    }
    return min(places, key=places.__getitem__, default="")


def sent(body: Mapping[str, Any], name: str) -> Any:
    """Returns the value of a setting in a request; None if it has none."""
    if name == EFFORT:
        return body.get("output_config", {}).get("effort")
    if name == FORCED_CALL:
        return body.get("tool_choice", {}).get("type")
    return body.get("thinking")


def build(
    request: ModelRequest,
    settings: ModelSettings,
    reply_forms: ReplyForms | None = None,
    refusals: Refusals | None = None,
) -> dict[str, Any]:
    """Returns the request body, without `stream`.

    There is no temperature: the API refuses sampling parameters since version 2026-10-21.

    Args:
        request: The request.
        settings: The model.
        reply_forms: Forms of JSON requests that the model refused.
        refusals: Other settings that the model refused.
    """
    refusals = refusals or Refusals()
    prompt = repair(request.messages)
    form = reply_form(request, settings, reply_forms or ReplyForms())
    if request.response_format is not None and form is ReplyForm.PROMPT:
        prompt = with_instruction(prompt, request.response_format, tools=bool(request.tools))
    system, messages = leading_system(prompt)
    thinking = _thinking(request, settings, messages)
    asks = request.tool_choice.forces_a_call and FORCED_CALL in refusals.names
    forces = request.tool_choice.forces_a_call and not asks
    forced = FORCED_THINKING if forces else THINKING
    if refusals.covers(THINKING, thinking) or refusals.covers(forced, thinking):
        thinking = None
    body: dict[str, Any] = {
        "model": settings.model,
        "max_tokens": _max_tokens(request, settings, thinking),
        "messages": _turns(messages),
    }
    if system:
        body["system"] = [{"type": "text", "text": system, "cache_control": _CACHED}]
    if request.tools and asks:
        # After the cached part, since other requests do not have it.
        name = request.tool_choice.name
        text = _ASKED_FOR.format(name) if name else _ASKED
        body.setdefault("system", []).append({"type": "text", "text": text})
    if request.tools:
        body["tools"] = [tool.derived(_tool, None) for tool in request.tools]
        choice = ToolChoice() if asks else request.tool_choice
        body["tool_choice"] = _tool_choice(choice, request, settings)
    if thinking is not None:
        body["thinking"] = thinking
    output = _output_config(request, settings, form)
    if refusals.covers(EFFORT, output.get("effort")):
        del output["effort"]
    if output:
        body["output_config"] = output
    return body


def _tool(tool: ToolSchema, _: None) -> dict[str, Any]:
    offered = offered_tool(tool, plain_names=True)
    return {
        "name": tool.name,
        "description": offered.description,
        "input_schema": offered.parameters,
    }


def takes_thinking_budget(model: str) -> bool:
    """Returns whether the model accepts a thinking budget, instead of deciding itself.

    Claude before 4.6 and other vendors' models behind this API take `budget_tokens`; from 4.6 on
    thinking is "adaptive", and newer models refuse a budget.
    """
    if "claude" not in model:
        return True
    version = _VERSION.search(model)
    return version is not None and (int(version[1]), int(version[2] or 0)) < (4, 6)


def _thinking(
    request: ModelRequest, settings: ModelSettings, messages: Sequence[ChatMessage]
) -> dict[str, Any] | None:
    if settings.reasoning_effort == "none":
        return {"type": "disabled"}
    should_reason = settings.max_reasoning_tokens > 0 or settings.reasoning_effort is not None
    if not should_reason:
        return None
    if not takes_thinking_budget(settings.model):
        # Newer models hide the text of their thinking unless asked for a summary.
        return {"type": "adaptive", "display": "summarized"}
    if settings.max_reasoning_tokens <= 0:
        return None
    # With a budget the API refuses forced calls, and continued calls that began without thinking.
    if request.tool_choice.forces_a_call or _in_loop_without_thinking(messages):
        return None
    budget = max(settings.max_reasoning_tokens, MIN_THINKING_BUDGET)
    return {"type": "enabled", "budget_tokens": budget}


def _in_loop_without_thinking(messages: Sequence[ChatMessage]) -> bool:
    if not messages or messages[-1].role is not ChatRole.TOOL:
        return False
    last = next(m for m in reversed(messages) if m.role is ChatRole.ASSISTANT)
    return not any(_replayable(part) for part in last.content if isinstance(part, ReasoningPart))


def _replayable(part: ReasoningPart) -> bool:
    return bool(part.signature or part.redacted) and not is_marked(part)


def _max_tokens(
    request: ModelRequest, settings: ModelSettings, thinking: dict[str, Any] | None
) -> int:
    limit = request.max_tokens or settings.max_tokens
    if not limit:
        limit = min(DEFAULT_MAX_TOKENS, max(1, settings.context_window // 2))
    budget: int = (thinking or {}).get("budget_tokens", 0)
    # The budget counts towards max_tokens, which is raised: the setting limits the answer only.
    return limit + budget


def reply_form(request: ModelRequest, settings: ModelSettings, learnt: ReplyForms) -> ReplyForm:
    """Returns how a request requires JSON: by a schema, or by the prompt.

    Structured output exists since Claude 4.5; the API has no mode for objects without a schema.
    """
    reply = request.response_format
    if reply is None or reply.schema is None or not _takes_schema(settings.model):
        return ReplyForm.PROMPT
    if to_closed(reply.schema) is None or learnt.of(reply, ReplyForm.SCHEMA) < ReplyForm.SCHEMA:
        return ReplyForm.PROMPT
    return ReplyForm.SCHEMA


def _takes_schema(model: str) -> bool:
    version = _VERSION.search(model)
    return version is not None and (int(version[1]), int(version[2] or 0)) >= (4, 5)


def _output_config(
    request: ModelRequest, settings: ModelSettings, form: ReplyForm
) -> dict[str, Any]:
    config: dict[str, Any] = {}
    effort = settings.reasoning_effort
    if effort is not None and effort != "none":
        config["effort"] = _EFFORTS.get(effort, effort)
    if request.response_format is not None and form is ReplyForm.SCHEMA:
        assert request.response_format.schema is not None
        schema = to_closed(request.response_format.schema)
        config["format"] = {"type": "json_schema", "schema": schema}
    return config


def _tool_choice(
    tool_choice: ToolChoice, request: ModelRequest, settings: ModelSettings
) -> dict[str, Any]:
    choice = _choice(tool_choice)
    parallel = request.parallel_tool_calls
    if parallel is None:
        parallel = settings.parallel_tool_calls
    if not parallel and choice["type"] != "none":
        choice["disable_parallel_tool_use"] = True
    return choice


def _choice(choice: ToolChoice) -> dict[str, Any]:
    if choice.mode is ToolChoiceMode.NAMED:
        return {"type": "tool", "name": choice.name}
    names = {ToolChoiceMode.REQUIRED: "any", ToolChoiceMode.NONE: "none"}
    return {"type": names.get(choice.mode, "auto")}


def _turns(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Returns alternating messages, user first and last, the last one with a cache mark."""
    turns: list[dict[str, Any]] = []
    # Few models accept a system message within a conversation; all accept a marked user block.
    for message in map(without_system_role, messages):
        role = "assistant" if message.role is ChatRole.ASSISTANT else "user"
        blocks = _blocks(message)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"].extend(blocks)
        else:
            turns.append({"role": role, "content": blocks})
    if not turns or turns[0]["role"] != "user":
        turns.insert(0, {"role": "user", "content": [{"type": "text", "text": OPENING}]})
    if turns[-1]["role"] != "user":
        turns.append({"role": "user", "content": [{"type": "text", "text": CONTINUE}]})
    turns[-1]["content"][-1]["cache_control"] = _CACHED
    return turns


def _blocks(message: ChatMessage) -> list[dict[str, Any]]:
    if message.role is ChatRole.TOOL:
        result = {"type": "tool_result", "tool_use_id": message.tool_call_id}
        if message.images:
            return [{**result, "content": [b for p in message.content if (b := _part(p))]}]
        return [{**result, "content": message.text} if message.text.strip() else result]
    blocks = [block for part in message.content if (block := _part(part)) is not None]
    blocks.extend(
        {
            "type": "tool_use",
            "id": call.id,
            "name": call.name,
            "input": _input(call.arguments),
        }
        for call in message.tool_calls
    )
    return blocks


def _part(part: Any) -> dict[str, Any] | None:
    if isinstance(part, ReasoningPart):
        if not _replayable(part):
            return None
        if part.redacted:
            return {"type": "redacted_thinking", "data": part.redacted}
        return {"type": "thinking", "thinking": part.text, "signature": part.signature}
    if isinstance(part, ShownImage):
        encoded = base64.b64encode(part.image.data).decode("ascii")
        source = {"type": "base64", "media_type": part.image.media_type, "data": encoded}
        return {"type": "image", "source": source}
    return {"type": "text", "text": part.text} if part.text.strip() else None


def _input(arguments: str) -> dict[str, Any]:
    value = argument_object(arguments)
    if value is not None:
        return value
    return {"invalid_arguments": arguments} if arguments.strip() else {}
