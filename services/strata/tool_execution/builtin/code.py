"""Tools that run code, and the conversion of sandbox results that they share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from strata.shared.sandbox import (
    Answerer,
    Isolation,
    Limits,
    RunResult,
    RunStatus,
    Sandbox,
    SandboxRun,
)
from strata.shared.tool_schemas import parameters, text
from strata.tool_execution.builtin.schemas import builtin
from strata.tool_execution.domain.printed import shortened
from strata.tool_execution.domain.tools import CallingAgent, Output, ToolCall, ToolError, ToolType

OUTPUT_CHARS = 16_000
"""Characters of stdout and of stderr that the model sees."""
VALUE_CHARS = 8_000
"""Characters of the value of the last expression, and of a traceback."""

RUN_CODE = builtin(
    name="run_code",
    description=(
        "Run Python or JavaScript. Use it for arithmetic, dates, counting, sorting, parsing and"
        " anything else that is better computed than guessed. Returns the output of the code and "
        "the value of its last expression. Every call starts from scratch: variables and files "
        "of earlier calls are gone, so the code must be complete. It has the standard library of "
        "the language, a scratch folder (the working directory), no network and no other "
        "packages; a call may take 30 seconds."
    ),
    kind=ToolType.BUILTIN,
    parameters=parameters(
        ["code"],
        code=text("A whole script. In Python `await` is allowed outside of functions."),
        language={
            "type": "string",
            "enum": ["python", "javascript"],
            "description": (
                "The language of the code (default python). JavaScript needs Node on the server, "
                "and fails with a message without it."
            ),
        },
    ),
)

RUN_CODE_WITH_TOOLS = builtin(
    name="run_code_with_tools",
    description=(
        "Run Python code that calls your other tools: use it if many calls, or calls that depend "
        "on each other, are easier to write as a loop. Each of your other tools is a function "
        "with the tool's name, with the tool's parameters as arguments, by name or in order: "
        "`archival_memory_search(query='tea')`. It returns what the tool"
        " returns (dicts, lists and text, not awaitable) and raises ToolError, with the message,"
        " if the tool fails or may not be called. `call_tool('a-name', **arguments)` calls a tool"
        " whose name is not a Python name. The rules for your tools apply to these calls too. Tools"
        " that need a person's approval, that end the turn, or whose result decides what may be"
        " called next, cannot be called from code; nor can this one. At most 50 calls. You see "
        "only what the code prints and the value of its last expression, so print what you need. "
        "Effects of the calls stay if the code fails later. Otherwise it works like run_code: "
        "the standard library, no network, nothing is kept afterwards."
    ),
    kind=ToolType.BUILTIN,
    parameters=parameters(
        ["code"],
        code=text("A whole Python script. `await` is allowed outside of functions."),
    ),
)

CODE_TOOLS = (RUN_CODE, RUN_CODE_WITH_TOOLS)


class CodeTools:
    """Runs ``run_code``; every call gets a new jail, which is removed afterwards.

    Calls of ``run_code_with_tools`` that arrive here are refused: they need a stream that answers
    nested tool calls, see `code_with_tools`.

    Args:
        sandbox: Where the code runs.
        limits: Limits of one call; by default the limits of custom tools.
    """

    names = frozenset({"run_code", "run_code_with_tools"})

    def __init__(self, sandbox: Sandbox, limits: Limits | None = None) -> None:
        self._sandbox = sandbox
        self._limits = limits or Limits()

    async def run(self, call: ToolCall, arguments: dict[str, Any], caller: CallingAgent) -> Output:
        """Runs code. The output is returned also if the code failed.

        Raises:
            ToolError: The code raised, exceeded a limit, or cannot be isolated on this server.
            UnavailableError: The sandbox is not running.
        """
        if call.name != "run_code":
            raise ToolError(
                f"{call.name} works only in a turn of an agent, which runs its nested calls."
            )
        code_arguments, function = {"code": arguments["code"]}, "run"
        if arguments.get("language") == "javascript":
            function, code_arguments["around"] = "run_javascript", _source_of("code_child.js")
        result = await self._sandbox.run(run_of(function, code_arguments, self._limits))
        return output_of(result, call.name)


def run_of(
    function: str,
    code_arguments: Mapping[str, Any],
    limits: Limits,
    answerer: Answerer | None = None,
) -> SandboxRun:
    """Returns the sandbox run that executes code.

    Args:
        function: The function of ``code_child.py`` that executes the code.
        code_arguments: Arguments of that function, including the code.
        limits: Limits of the run.
        answerer: Answers nested tool calls; None if the code cannot make any.

    Raises:
        ToolError: The code is not valid Unicode text.
    """
    try:
        arguments_json = json.dumps({**code_arguments, "most": VALUE_CHARS}, ensure_ascii=False)
        arguments_json.encode()
    except UnicodeEncodeError:
        raise ToolError("The code contains a lone surrogate, which is not valid text.") from None
    return SandboxRun(
        source=_source_of("code_child.py"),
        function=function,
        arguments_json=arguments_json,
        limits=limits,
        answerer=answerer,
    )


@cache
def _source_of(name: str) -> str:
    return files("strata.tool_execution.builtin").joinpath(name).read_text("utf-8")


def output_of(result: RunResult, name: str, extra: Mapping[str, Any] | None = None) -> Output:
    """Returns the tool return for the result of a sandbox run.

    Args:
        result: Result of the sandbox.
        name: Name of the tool.
        extra: Further members of the tool return, also if the code failed.

    Raises:
        ToolError: The code raised, exceeded a limit, or could not be isolated on this server.
    """
    if result.status is RunStatus.REFUSED:
        raise ToolError(_refused(result, name))
    printed: dict[str, Any] = dict(extra or {})
    for stream, printed_text in (("stdout", result.stdout), ("stderr", result.stderr)):
        if printed_text:
            printed[stream] = shortened(printed_text, OUTPUT_CHARS)
    if result.status is not RunStatus.OK:
        error_output = {"error": _stopped(result), **printed}
        raise ToolError(error_output["error"]["message"], error_output)
    answer = _object(result.value_json)
    if "error" in answer:
        error_output = {"error": _error_of(answer["error"]), **printed}
        raise ToolError(error_output["error"]["message"], error_output)
    if isinstance(answer.get("value"), str):
        printed = {"value": answer["value"][: 2 * VALUE_CHARS], **printed}
    if result.detail:
        printed["message"] = result.detail
    elif printed.keys() == (extra or {}).keys():
        printed["message"] = "The code ran, and printed and returned nothing."
    return Output(printed)


def _refused(result: RunResult, name: str) -> str:
    if result.isolation is Isolation.NONE:
        return (
            f"{name} cannot be used on this server: code runs only where it can be isolated from "
            f"the rest of the machine. Nothing was run. {result.detail}"
        )
    return f"The code was not run. {result.detail}"


def _stopped(result: RunResult) -> dict[str, str]:
    failure = result.failure
    if result.status is RunStatus.TOOL_ERROR and failure is not None:
        return {"type": failure.type, "message": failure.message}
    message = result.detail or "The code did not end normally."
    return {"type": f"stopped: {result.status.value}", "message": message}


def _object(text: str) -> dict[str, Any]:
    # The code runs in the same process as code_child.py and can forge its answer: check every type.
    value = json.loads(text)
    return value if isinstance(value, dict) else {}


def _error_of(error: object) -> dict[str, str]:
    reported = error if isinstance(error, dict) else {}
    cleaned = {"type": "Exception", "message": ""}
    for name in ("type", "message", "traceback"):
        if isinstance(reported.get(name), str):
            cleaned[name] = reported[name][: 2 * VALUE_CHARS]
    return cleaned
