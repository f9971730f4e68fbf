"""Tools that this program runs for agents: their calls are answered here, with their returns."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pydantic
import pydantic_core

from strata.api.common.v1 import message_pb2 as pb
from strata.client.tools import wrong_argument

MOST_ANSWERS = 100
"""Times that one message's runs are answered before they are left to wait."""

# What the gateway takes of one return.
_MOST_CHARS = 200_000
_CUT = "... [cut at {limit} characters]"
_LABELS = {"web": pb.PROVENANCE_WEB, "mcp": pb.PROVENANCE_MCP}


@dataclass(frozen=True, slots=True)
class Untrusted:
    """What a tool returns if strangers wrote it; the turn is tainted with it.

    Attributes:
        value: The return.
        label: Where it comes from.
    """

    value: Any
    label: Literal["web", "mcp"] = "web"


class ClientTools:
    """Functions of this program that agents call by their names.

    Args:
        functions: Plain or ``async`` functions or methods. They get their arguments as their
            annotations say, read by pydantic.

    Raises:
        InvalidArgumentError: One has no name, two have the same, or pydantic cannot read an
            annotation.
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
                self._functions[name] = pydantic.validate_call(function)
            except (pydantic.errors.PydanticUserError, NameError) as error:
                raise wrong_argument("tools", f"has {name}, which cannot be called: {error}") from (
                    None
                )

    def cover(self, request: pb.ApprovalRequestPart) -> bool:
        """Says whether all that is asked for are calls of these functions."""
        return len(self._own(request)) == len(request.tool_calls)

    async def decide(self, request: pb.ApprovalRequestPart) -> list[pb.ApprovalDecision]:
        """Makes the calls of these functions, in their order, and returns the decisions about them.

        All else in the request is left out; an answer needs a decision about each call. An
        exception of a function is told to the model by type and message. A plain function runs in
        a thread.
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
            value = await _called(self._functions[call.name], call.arguments)
            if isinstance(value, Untrusted):
                decision.client_taint.append(_LABELS[value.label])
                value = value.value
            decision.client_return = _sendable(_as_text(value))
        except Exception as error:  # noqa: BLE001 - whatever it is, the model is told
            decision.client_status = pb.TOOL_STATUS_FAILED
            decision.client_return = _sendable(f"{type(error).__name__}: {error}")
        return decision


def calls_by_client(request: pb.ApprovalRequestPart) -> frozenset[str]:
    """Returns the ids of the calls of a request that wait for the return of a client's tool."""
    return frozenset(bound.tool_call_id for bound in request.bindings if bound.by_client)


async def _called(function: Callable[..., Any], arguments: str) -> Any:
    given: Mapping[str, Any] = pydantic_core.from_json(arguments or "{}")
    if inspect.iscoroutinefunction(function):
        return await function(**given)
    value = await asyncio.to_thread(function, **given)
    return await value if inspect.isawaitable(value) else value


def _as_text(value: Any) -> str:
    if isinstance(value, str) or value is None:
        return str(value)
    return pydantic_core.to_json(value).decode()


def _sendable(text: str) -> str:
    """Returns text as a message can hold it: no NUL, no half of a character, not too long."""
    text = text.replace("\0", "").encode("utf-8", "replace").decode()
    if len(text) <= _MOST_CHARS:
        return text
    note = _CUT.format(limit=_MOST_CHARS)
    return text[: _MOST_CHARS - len(note)] + note
