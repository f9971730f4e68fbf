"""Executor of ``run_code_with_tools``: code that calls the agent's other tools (decision 0086)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from strata.shared.sandbox import Limits, Sandbox
from strata.tool_execution.builtin.code import output_of, run_of
from strata.tool_execution.domain.tools import CallingAgent, Output, ToolCall, ToolError

MAX_CALLS = 100
"""Nested calls, run or refused, after which the code is ended. The agent loop has a lower limit."""
_NAME_CHARS = 200
_ARGUMENT_CHARS = 256 * 1024
# The code is ended this long before the time limit of the call, so that its output is returned.
_REPORT_S = 5.0


@dataclass(frozen=True, slots=True)
class NestedReturn:
    """The result of a nested tool call.

    Attributes:
        value_json: The return of the tool, as JSON, if there is no error.
        error: Why the call failed, as a message for the code; None if it succeeded.
    """

    value_json: str = "null"
    error: str | None = None


class NestedCaller(Protocol):
    """Makes nested tool calls: has them checked against the tool rules, and run."""

    async def ask(self, parent_id: str, name: str, arguments: str) -> NestedReturn:
        """Makes one nested call and waits for its result.

        Args:
            parent_id: Id of the call whose code makes this one.
            name: Name of the tool.
            arguments: A JSON object, as text.

        Raises:
            UnavailableError: The client closed the stream that answers nested calls.
        """
        ...


class CodeWithTools:
    """Runs ``run_code_with_tools`` for the calls of one stream.

    Args:
        sandbox: Where the code runs.
        nested: Makes the nested calls.
        tools: Tools that the code can call as functions: parameter names by tool name.
        limits: Limits of one call.
    """

    names = frozenset({"run_code_with_tools"})

    def __init__(
        self,
        sandbox: Sandbox,
        nested: NestedCaller,
        tools: Mapping[str, Sequence[str]],
        limits: Limits,
    ) -> None:
        self._sandbox = sandbox
        self._nested = nested
        self._tools = {name: list(parameters) for name, parameters in tools.items()}
        self._limits = limits

    async def run(self, call: ToolCall, arguments: dict[str, Any], caller: CallingAgent) -> Output:
        """Runs code. Its output and the tools it called are returned also if the code failed.

        Raises:
            ToolError: The code raised, exceeded a limit, or made too many calls, or it cannot be
                isolated on this server.
            UnavailableError: The sandbox is not running, or the stream that answers nested calls
                has ended.
        """
        call_counts: Counter[tuple[str, str]] = Counter()

        async def answerer(question: str) -> str:
            if call_counts.total() >= MAX_CALLS:
                raise ToolError(f"The code was ended: it called tools {MAX_CALLS} times.")
            name, answer = await self._answer(call.id, json.loads(question))
            call_counts[name, "ok" if answer.error is None else "failed"] += 1
            if answer.error is not None:
                return json.dumps({"error": answer.error})
            return f'{{"value":{answer.value_json}}}'

        run = run_of(
            "run_with_tools",
            {"code": arguments["code"], "tools": self._tools},
            self._limits,
            answerer,
        )
        result = await self._sandbox.run(run)
        return output_of(
            result, call.name, {"tool_calls": _counted(call_counts)} if call_counts else {}
        )

    async def _answer(self, parent_id: str, question: object) -> tuple[str, NestedReturn]:
        # The code can send anything. The agent loop decides which calls the tool rules allow.
        request = question if isinstance(question, dict) else {}
        name, arguments = request.get("name"), request.get("arguments")
        if not isinstance(name, str) or len(name) > _NAME_CHARS or not isinstance(arguments, dict):
            return "?", NestedReturn(
                error="A call needs the name of a tool and its arguments by name."
            )
        text = json.dumps(arguments, ensure_ascii=False)
        if not _is_text(name + text):
            return "?", NestedReturn(
                error="A call contains a lone surrogate, which is not valid text."
            )
        if len(text) > _ARGUMENT_CHARS:
            words = f"The arguments are longer than {_ARGUMENT_CHARS:,} characters as JSON."
            return name, NestedReturn(error=f"{words} {name} was not called.")
        return name, await self._nested.ask(parent_id, name, text)


def code_with_tools(
    sandbox: Sandbox, timeout: float
) -> Callable[[NestedCaller, Mapping[str, Sequence[str]]], CodeWithTools]:
    """Returns a factory of executors, one per stream.

    Args:
        sandbox: Where the code runs.
        timeout: Seconds that one call of a built-in tool may take. The time of nested calls counts
            as well, so the code may take longer than in ``run_code``.
    """
    limits = replace(Limits(), wall_seconds=max(timeout - _REPORT_S, timeout / 2))
    return lambda nested, tools: CodeWithTools(sandbox, nested, tools, limits)


def _counted(call_counts: Counter[tuple[str, str]]) -> str:
    return ", ".join(f"{name}: {count} {how}" for (name, how), count in call_counts.items())


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
