"""Cleans up and checks the tool calls of a reply before they are run or stored."""

from __future__ import annotations

import json
from collections.abc import Collection

from strata.agent_loop.domain.model.chat import (
    FinishReason,
    ModelReply,
    ReasoningPart,
    TextPart,
    ToolCall,
)
from strata.agent_loop.domain.model.proofs import is_thought, thought
from strata.agent_loop.domain.tools import Tool, ToolSet
from strata.agent_loop.loop.storable_pieces import CallIds
from strata.agent_loop.rules.refusals import CONSTRAINT, NOT_AN_OBJECT, NOT_JSON, TOO_DEEP
from strata.shared.bounded_validator import TooCostlyError
from strata.shared.json_text import (
    MAX_JSON_DEPTH,
    JsonTextError,
    JsonTooDeepError,
    parse_json,
    storable_text,
)
from strata.shared.record_fields import replace
from strata.shared.tool_arguments import STEPS_ON_EVENT_LOOP, ArgumentsError, fit_arguments

_MAX_SHOWN = 200


def tidy(reply: ModelReply, used_ids: Collection[str]) -> ModelReply:
    """Returns a reply in a form that can be stored.

    NUL is removed from texts, since PostgreSQL refuses it, and unpaired surrogates, since UTF-8
    cannot encode them. Call ids are made unique in the window.

    Args:
        reply: The model's reply.
        used_ids: Ids of the calls in the window.
    """
    ids = CallIds(used_ids)
    calls = [
        replace(
            call,
            id=ids.add(call.id),
            name=storable_text(call.name),
            arguments=storable_text(call.arguments),
        )
        for call in reply.tool_calls
    ]
    content = tuple(_tidy_part(part) for part in reply.content)
    return replace(reply, content=content, tool_calls=tuple(calls))


def refusal(call: ToolCall, tools: ToolSet, finish: FinishReason, *, last: bool) -> str | None:
    """Returns why a call cannot be run, as a text for the model; None if it can.

    Args:
        call: The call.
        tools: The agent's tools.
        finish: How the reply ended.
        last: Whether this is the reply's last call, which the output limit may have truncated.
    """
    tool = tools.find(call.name)
    if tool is None:
        return f"{CONSTRAINT} Cannot call {call.name}, valid tools include: {tools.names}."
    problem = _argument_problem(call.arguments)
    if problem and last and finish is FinishReason.LENGTH:
        return (
            f"{problem} The reply was cut at the limit of output tokens, so the call is"
            " incomplete and was not run."
        )
    return problem


def fitted(tool: Tool, arguments: str) -> tuple[str, str | None]:
    """Fits the arguments of a client's tool to its schema; returns them and the error text, if any.

    For all other tools the service that runs them does this.

    Args:
        tool: A tool that the client runs.
        arguments: A JSON object.
    """
    try:
        fitting = fit_arguments(tool.name, tool.schema.parameters, arguments)
    except ArgumentsError as error:
        return arguments, str(error)
    return json.dumps(fitting, ensure_ascii=False), None


def invalid_arguments(tool: Tool, arguments: str) -> str | None:
    """Returns the error text for arguments that do not fit the schema of a tool; None if they fit.

    The service that runs the tool checks them as well. Here it is checked that nobody is asked to
    approve a call that would fail. A check that takes long is left to that service.

    Args:
        tool: The tool.
        arguments: A JSON object, or blank.
    """
    try:
        fit_arguments(
            tool.name,
            tool.schema.parameters,
            arguments.strip() or "{}",
            most_steps=STEPS_ON_EVENT_LOOP,
        )
    except ArgumentsError as error:
        return str(error)
    except TooCostlyError:
        return None
    return None


def runnable(call: ToolCall) -> ToolCall:
    """Returns the call for the executor, with an empty object instead of empty arguments."""
    return call if call.arguments.strip() else replace(call, arguments="{}")


def _argument_problem(arguments: str) -> str | None:
    if not arguments.strip():
        return None
    try:
        value = parse_json(arguments)
    except JsonTooDeepError:
        return (
            f"{TOO_DEEP} than {MAX_JSON_DEPTH} levels; the call was not run. Pass a flatter"
            f" object. You wrote: {_shown(arguments)}"
        )
    except JsonTextError as error:
        return f"{NOT_JSON} ({error}); the call was not run. You wrote: {_shown(arguments)}"
    if isinstance(value, dict):
        return None
    return (
        f"{NOT_AN_OBJECT} with one member per parameter, not"
        f" {_KINDS[type(value)]}; the call was not run. You wrote: {_shown(arguments)}"
    )


_KINDS = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}


def _shown(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _tidy_part(part: TextPart | ReasoningPart) -> TextPart | ReasoningPart:
    text = storable_text(part.text)
    if isinstance(part, TextPart):
        return replace(part, text=text)
    if is_thought(part):
        return thought(text)
    # Changed reasoning loses its signature, with which it could be sent back.
    whole = part.text + part.signature + part.redacted
    return part if storable_text(whole) == whole else ReasoningPart(text)
