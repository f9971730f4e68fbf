"""The tool that runs code."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from strata.tool_execution.domain.sandbox import (
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

    Args:
        sandbox: Where it runs.
        limits: Most that a call may take; those of custom tools unless said otherwise.
    """

    names = frozenset({"run_code"})

    def __init__(self, sandbox: Sandbox, limits: Limits | None = None) -> None:
        self._sandbox = sandbox
        self._limits = limits or Limits()

    async def run(self, call: Call, arguments: dict[str, Any], caller: Caller) -> Output:
        """Runs code; what it printed is told also if it failed.

        Raises:
            ToolError: It raised, met a limit, or cannot be isolated here.
            UnavailableError: The sandbox is not running.
        """
        asked = {"code": arguments["code"], "most": VALUE_CHARS}
        function = "run"
        if arguments.get("language") == "javascript":
            function, asked["around"] = "run_javascript", _part("code_child.js")
        try:
            arguments_json = json.dumps(asked, ensure_ascii=False)
            arguments_json.encode()
        except UnicodeEncodeError:
            raise ToolError("The code contains half a surrogate pair, which is no text.") from None
        result = await self._sandbox.run(
            Run(
                source=_part("code_child.py"),
                function=function,
                arguments_json=arguments_json,
                limits=self._limits,
            )
        )
        return _output(result)


@cache
def _part(name: str) -> str:
    return files("strata.tool_execution.builtin").joinpath(name).read_text("utf-8")


def _output(result: RunResult) -> Output:
    if result.status is RunStatus.REFUSED:
        raise ToolError(_refused(result))
    printed: dict[str, Any] = {}
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
    return Output(printed or {"message": "The code ran, and neither printed nor gave anything."})


def _refused(result: RunResult) -> str:
    if result.isolation is Isolation.NONE:
        return (
            "run_code cannot be used on this server: code runs only where it can be kept from the"
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
