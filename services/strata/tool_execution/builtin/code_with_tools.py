"""The tool that runs code which calls the agent's other tools (decision 0086)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from strata.tool_execution.builtin.code import output_of, run_of
from strata.tool_execution.domain.sandbox import Limits, Sandbox
from strata.tool_execution.domain.tools import Call, Caller, Output, ToolError

MAX_CALLS = 100
"""Calls, made or refused, after which code is ended. The agent loop refuses far fewer."""
_NAME_CHARS = 200
_ARGUMENT_CHARS = 256 * 1024
# Before the time of a call of any tool is up, to say what was printed.
_SAYING_S = 5.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call of code came to.

    Attributes:
        value_json: What the tool returned, if there is no error.
        error: Why there is no value, in words for the code; None if there is one.
    """

    value_json: str = "null"
    error: str | None = None


class Asking(Protocol):
    """Has the calls of code judged and run."""

    async def ask(self, parent_id: str, name: str, arguments: str) -> Answer:
        """Asks for one call, and waits for what it comes to.

        Args:
            parent_id: The call whose code asks.
            name: The tool.
            arguments: A JSON object, as text.

        Raises:
            UnavailableError: Whoever answers is gone.
        """
        ...


class CodeWithTools:
    """Runs ``run_code_with_tools`` among the calls of one stream.

    Args:
        sandbox: Where it runs.
        asking: Who is asked for the calls of its code.
        tools: What the code finds as functions: names of parameters by name of the tool.
        limits: Most that a call may take.
    """

    names = frozenset({"run_code_with_tools"})

    def __init__(
        self,
        sandbox: Sandbox,
        asking: Asking,
        tools: Mapping[str, Sequence[str]],
        limits: Limits,
    ) -> None:
        self._sandbox = sandbox
        self._asking = asking
        self._tools = {name: list(parameters) for name, parameters in tools.items()}
        self._limits = limits

    async def run(self, call: Call, arguments: dict[str, Any], caller: Caller) -> Output:
        """Runs code; what it printed, and which tools it called, is told also if it failed.

        Raises:
            ToolError: It raised, met a limit, called tools without end, or cannot be isolated.
            UnavailableError: The sandbox is not running, or nobody answers its calls.
        """
        made: Counter[tuple[str, str]] = Counter()

        async def answerer(asked: str) -> str:
            if made.total() >= MAX_CALLS:
                raise ToolError(f"The code was ended: it called tools {MAX_CALLS} times.")
            name, answer = await self._answer(call.id, json.loads(asked))
            made[name, "ok" if answer.error is None else "failed"] += 1
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
        return output_of(result, call.name, {"tool_calls": _counted(made)} if made else {})

    async def _answer(self, parent_id: str, asked: object) -> tuple[str, Answer]:
        # The process can ask for anything; what may be called is decided where the rules are.
        given = asked if isinstance(asked, dict) else {}
        name, arguments = given.get("name"), given.get("arguments")
        if not isinstance(name, str) or len(name) > _NAME_CHARS or not isinstance(arguments, dict):
            return "?", Answer(error="A call needs the name of a tool and its arguments by name.")
        text = json.dumps(arguments, ensure_ascii=False)
        if not _is_text(name + text):
            return "?", Answer(error="A call holds half a surrogate pair, which is no text.")
        if len(text) > _ARGUMENT_CHARS:
            words = f"The arguments are longer than {_ARGUMENT_CHARS:,} characters as JSON."
            return name, Answer(error=f"{words} {name} was not called.")
        return name, await self._asking.ask(parent_id, name, text)


def code_with_tools(
    sandbox: Sandbox, timeout: float
) -> Callable[[Asking, Mapping[str, Sequence[str]]], CodeWithTools]:
    """Returns what makes the executor of a stream.

    Args:
        sandbox: Where code runs.
        timeout: Seconds that one call of a built-in tool may take. The tools that code calls
            take theirs from it, so that there is more than for `run_code`.
    """
    limits = replace(Limits(), wall_seconds=max(timeout - _SAYING_S, timeout / 2))
    return lambda asking, tools: CodeWithTools(sandbox, asking, tools, limits)


def _counted(made: Counter[tuple[str, str]]) -> str:
    return ", ".join(f"{name}: {count} {how}" for (name, how), count in made.items())


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
