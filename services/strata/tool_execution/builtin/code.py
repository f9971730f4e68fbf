"""The tools that run code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from strata.tool_execution.domain.sandbox import (
    Answerer,
    Isolation,
    Limits,
    Run,
    RunResult,
    RunStatus,
    Sandbox,
)
from strata.tool_execution.domain.tools import Call, Caller, Output, ToolError

OUTPUT_CHARS = 16_000
"""Characters of each of the two outputs that the model is shown."""
VALUE_CHARS = 8_000
"""Characters of the value of the last expression, and of a traceback."""


class CodeTools:
    """Runs ``run_code``: every call in a jail of its own, which is gone afterwards.

    ``run_code_with_tools`` is refused here: see `code_with_tools`, for streams that can answer.

    Args:
        sandbox: Where it runs.
        limits: Most that a call may take; those of custom tools unless said otherwise.
    """

    names = frozenset({"run_code", "run_code_with_tools"})

    def __init__(self, sandbox: Sandbox, limits: Limits | None = None) -> None:
        self._sandbox = sandbox
        self._limits = limits or Limits()

    async def run(self, call: Call, arguments: dict[str, Any], caller: Caller) -> Output:
        """Runs code; what it printed is told also if it failed.

        Raises:
            ToolError: It raised, met a limit, or cannot be isolated here.
            UnavailableError: The sandbox is not running.
        """
        if call.name != "run_code":
            raise ToolError(f"{call.name} works only in a turn of an agent: nobody runs its calls.")
        asked, function = {"code": arguments["code"]}, "run"
        if arguments.get("language") == "javascript":
            function, asked["around"] = "run_javascript", _part("code_child.js")
        result = await self._sandbox.run(run_of(function, asked, self._limits))
        return output_of(result, call.name)


def run_of(
    function: str, asked: Mapping[str, Any], limits: Limits, answerer: Answerer | None = None
) -> Run:
    """Returns how code is run.

    Args:
        function: What runs it, in ``code_child.py``.
        asked: The arguments of that, with the code.
        limits: Most that it may take.
        answerer: Whom it can ask.

    Raises:
        ToolError: The code is no text.
    """
    try:
        arguments_json = json.dumps({**asked, "most": VALUE_CHARS}, ensure_ascii=False)
        arguments_json.encode()
    except UnicodeEncodeError:
        raise ToolError("The code contains half a surrogate pair, which is no text.") from None
    return Run(
        source=_part("code_child.py"),
        function=function,
        arguments_json=arguments_json,
        limits=limits,
        answerer=answerer,
    )


@cache
def _part(name: str) -> str:
    return files("strata.tool_execution.builtin").joinpath(name).read_text("utf-8")


def output_of(result: RunResult, name: str, also: Mapping[str, Any] | None = None) -> Output:
    """Returns what the model is told of a run.

    Args:
        result: How it ended.
        name: The tool.
        also: What else is told, whether the code failed or not.

    Raises:
        ToolError: It raised, met a limit, or could not be isolated here.
    """
    if result.status is RunStatus.REFUSED:
        raise ToolError(_refused(result, name))
    printed: dict[str, Any] = dict(also or {})
    for name, text in (("stdout", result.stdout), ("stderr", result.stderr)):
        if text:
            printed[name] = _ends(text)
    if result.status is not RunStatus.OK:
        told = {"error": _stopped(result), **printed}
        raise ToolError(told["error"]["message"], told)
    gave = _object(result.value_json)
    if "error" in gave:
        told = {"error": _words(gave["error"]), **printed}
        raise ToolError(told["error"]["message"], told)
    if isinstance(gave.get("value"), str):
        printed = {"value": gave["value"][: 2 * VALUE_CHARS], **printed}
    if result.detail:
        printed["message"] = result.detail
    elif printed.keys() == (also or {}).keys():
        printed["message"] = "The code ran, and neither printed nor gave anything."
    return Output(printed)


def _refused(result: RunResult, name: str) -> str:
    if result.isolation is Isolation.NONE:
        return (
            f"{name} cannot be used on this server: code runs only where it can be kept from the"
            f" rest of the machine. Nothing was run. {result.detail}"
        )
    return f"The code was not run. {result.detail}"


def _stopped(result: RunResult) -> dict[str, str]:
    failure = result.failure
    if result.status is RunStatus.TOOL_ERROR and failure is not None:
        return {"type": failure.type, "message": failure.message}
    said = result.detail or "The code did not end well."
    return {"type": f"stopped: {result.status.value}", "message": said}


def _object(text: str) -> dict[str, Any]:
    # The code shares its process with what stands around it, and can answer in its place.
    value = json.loads(text)
    return value if isinstance(value, dict) else {}


def _words(error: object) -> dict[str, str]:
    given = error if isinstance(error, dict) else {}
    told = {"type": "Exception", "message": ""}
    for name in ("type", "message", "traceback"):
        if isinstance(given.get(name), str):
            told[name] = given[name][: 2 * VALUE_CHARS]
    return told


def _ends(text: str) -> str:
    """Returns an output, of a long one the beginning and the end."""
    if len(text) <= OUTPUT_CHARS:
        return text
    half = OUTPUT_CHARS // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n... [{left_out:,} characters left out] ...\n{text[-half:]}"
