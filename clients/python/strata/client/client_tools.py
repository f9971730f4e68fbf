"""Client tools: functions of this program that answer tool calls of agents."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import decimal
import enum
import inspect
import json
import pathlib
import typing
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from strata.api.common.v1 import message_pb2 as pb
from strata.client.tools import wrong_argument
from strata.protocol.argument_conversion import _strata_call

MAX_ANSWERS = 100
"""Maximum number of approval requests that are answered for one message."""

# The gateway's limit for one return.
_MAX_CHARS = 200_000
_CUT = "... [cut at {limit} characters]"
_LABELS = {"web": pb.PROVENANCE_WEB, "mcp": pb.PROVENANCE_MCP}


@dataclass(frozen=True, slots=True)
class Untrusted:
    """A return with untrusted content, which taints the turn.

    Attributes:
        value: The return.
        label: Its provenance.
    """

    value: Any
    label: Literal["web", "mcp"] = "web"


class ClientTools:
    """Functions of this program that agents call by name.

    Args:
        functions: Plain or ``async`` functions or methods. Their arguments are converted to the
            types in their annotations, like tools that run in the sandbox.

    Raises:
        InvalidArgumentError: A function has no name, two have the same name, or an annotation
            names something that is not defined.
    """

    def __init__(self, functions: Iterable[Callable[..., Any]]) -> None:
        self._functions: dict[str, Callable[..., Any]] = {}
        for function in functions:
            name = getattr(function, "__name__", "")
            if not name:
                raise wrong_argument("tools", f"has {function!r}, which has no name")
            if name in self._functions:
                raise wrong_argument("tools", f"has two functions of the name {name}")
            try:
                typing.get_type_hints(function)
            except (NameError, TypeError) as error:
                raise wrong_argument("tools", f"has {name}, which cannot be called: {error}") from (
                    None
                )
            self._functions[name] = function

    def covers(self, request: pb.ApprovalRequestPart) -> bool:
        """Whether the request consists only of calls of these functions."""
        return len(self._own(request)) == len(request.tool_calls)

    async def decide(self, request: pb.ApprovalRequestPart) -> list[pb.ApprovalDecision]:
        """Calls these functions in the order of the request, and returns the decisions.

        Other calls in the request are left out, although an answer needs a decision about each
        call. The model gets type and message of an exception. A plain function runs in a thread.
        """
        hashes = {bound.tool_call_id: bound.arguments_hash for bound in request.bindings}
        return [
            await self._decide(call, hashes.get(call.tool_call_id, ""))
            for call in self._own(request)
        ]

    def _own(self, request: pb.ApprovalRequestPart) -> list[pb.ToolCallPart]:
        by_client = calls_by_client(request)
        return [
            call
            for call in request.tool_calls
            if call.tool_call_id in by_client and call.name in self._functions
        ]

    async def _decide(self, call: pb.ToolCallPart, arguments_hash: str) -> pb.ApprovalDecision:
        decision = pb.ApprovalDecision(
            tool_call_id=call.tool_call_id, arguments_hash=arguments_hash
        )
        try:
            value = await _call(self._functions[call.name], call.arguments)
            if isinstance(value, Untrusted):
                decision.client_taint.append(_LABELS[value.label])
                value = value.value
            decision.client_return = _sendable(_as_text(value))
        except Exception as error:  # noqa: BLE001 - the model gets every error
            decision.client_status = pb.TOOL_STATUS_FAILED
            decision.client_return = _sendable(f"{type(error).__name__}: {error}")
        return decision


def calls_by_client(request: pb.ApprovalRequestPart) -> frozenset[str]:
    """Returns the ids of a request's calls of client tools."""
    return frozenset(bound.tool_call_id for bound in request.bindings if bound.by_client)


async def _call(function: Callable[..., Any], arguments: str) -> Any:
    values: dict[str, Any] = json.loads(arguments or "{}")
    if inspect.iscoroutinefunction(function):
        return await _strata_call(function, values)
    value = await asyncio.to_thread(_strata_call, function, values)
    return await value if inspect.isawaitable(value) else value


def _as_text(value: Any) -> str:
    if isinstance(value, str) or value is None:
        return str(value)
    return json.dumps(
        value, allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_plain
    )


def _plain(value: Any) -> Any:
    """Converts a value that JSON does not support; called by the encoder."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    if callable(dump := getattr(value, "model_dump", None)) and not isinstance(value, type):
        return dump(mode="json")
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, uuid.UUID | decimal.Decimal | pathlib.PurePath):
        return str(value)
    if isinstance(value, set | frozenset):
        return list(value)
    raise TypeError(f"A return of type {type(value).__name__} cannot be converted to JSON.")


def _sendable(text: str) -> str:
    """Returns text that is valid in a message: without NUL and lone surrogates, and truncated."""
    text = text.replace("\0", "").encode("utf-8", "replace").decode()
    if len(text) <= _MAX_CHARS:
        return text
    note = _CUT.format(limit=_MAX_CHARS)
    return text[: _MAX_CHARS - len(note)] + note
