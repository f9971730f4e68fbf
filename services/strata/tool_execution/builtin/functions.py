"""Built-in tools that are plain functions: they call no other service and have no effect.

A new tool is one entry in `shared/tool_catalogue.py` and one function here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from strata.shared.clock import Clock
from strata.shared.local_time import is_time_zone
from strata.shared.search.time_expressions import zone_of
from strata.shared.tool_catalogue import SENT_MESSAGE
from strata.shared.tool_returns import TIME_FORMAT
from strata.shared.tool_schemas import parameters, text
from strata.tool_execution.builtin.schemas import builtin
from strata.tool_execution.domain.tools import (
    CallingAgent,
    Output,
    Tool,
    ToolCall,
    ToolError,
    ToolType,
)


@dataclass(frozen=True, slots=True)
class Invocation:
    """A call of a function.

    Attributes:
        arguments: The arguments by name, valid for the schema of the tool.
        caller: The agent that calls, with its timezone and settings.
        clock: The clock of the process.
    """

    arguments: Mapping[str, Any]
    caller: CallingAgent
    clock: Clock


Function = Callable[[Invocation], Output]
_FUNCTIONS: dict[str, Function] = {}
_TOOLS: dict[str, Tool] = {}


def _tool(description: str, schema: Mapping[str, Any]) -> Callable[[Function], Function]:
    """Registers a function as the built-in tool of its name.

    Args:
        description: The description that the model reads.
        schema: JSON schema of the arguments, see `schemas.parameters`.
    """

    def register(function: Function) -> Function:
        name = function.__name__
        _FUNCTIONS[name] = function
        _TOOLS[name] = builtin(
            name=name, description=description, kind=ToolType.CORE, parameters=schema
        )
        return function

    return register


@_tool(
    "Send a message to the user, who reads the text of the argument.",
    parameters(["message"], message=text("The text of the message.")),
)
def send_message(invocation: Invocation) -> Output:
    """Returns the fixed return of a sent message: clients show the argument of the call."""
    return Output(SENT_MESSAGE)


@_tool(
    "Get the current date, weekday and time in a timezone. Use it when the user asks about another"
    ' place, or needs the exact time. Example: current_time(timezone="Asia/Tokyo").',
    parameters(
        [],
        timezone=text(
            'IANA name of the timezone, such as "Europe/Berlin" or "UTC". Leave it out for your own'
            " timezone."
        ),
    ),
)
def current_time(invocation: Invocation) -> Output:
    """Returns the time in a timezone, by default the agent's.

    Raises:
        ToolError: There is no such timezone.
    """
    name = invocation.arguments.get("timezone")
    if name is not None and not is_time_zone(name):
        raise ToolError(
            f'There is no timezone {name!r}. Use an IANA name such as "Europe/Berlin" or'
            ' "America/New_York", or leave timezone out for your own.'
        )
    timezone = zone_of(invocation.caller.timezone if name is None else name)
    moment = invocation.clock.now().astimezone(timezone)
    return Output(f"{moment:%A}, {moment.strftime(TIME_FORMAT)} ({timezone.key})")


FUNCTION_TOOLS = tuple(_TOOLS.values())


class FunctionTools:
    """Runs the tools of this module.

    Args:
        clock: The clock that functions read.
    """

    names = frozenset(_FUNCTIONS)

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def run(self, call: ToolCall, arguments: dict[str, Any], caller: CallingAgent) -> Output:
        """Calls the function.

        Raises:
            ToolError: The function refused its arguments.
        """
        return _FUNCTIONS[call.name](Invocation(arguments, caller, self._clock))
