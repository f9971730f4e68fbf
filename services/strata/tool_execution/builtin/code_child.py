"""Executes the code of ``run_code`` and ``run_code_with_tools`` inside the jail.

`code.py` sends this module as source text. The code is written by a model and runs in this process,
so it can forge any answer: the caller trusts nothing that comes back.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import contextlib
import inspect
import json
import keyword
import linecache
import pathlib
import subprocess
import sys
import traceback
import types
from typing import Any

_FILE = "<code>"
_VALUE = "_strata_value"
_FRAMES = 8


class ToolError(Exception):
    """A tool failed, or was not called; the text has the reason."""


def run_with_tools(code: str, most: int, tools: dict[str, list[str]]) -> dict[str, Any]:
    """Runs code that can call tools as functions.

    Args:
        code: See `run`.
        most: See `run`.
        tools: Parameter names by tool name.

    Returns:
        The same as `run`.
    """
    names: dict[str, Any] = {"call_tool": call_tool, "ToolError": ToolError}
    for name, parameters in tools.items():
        # A tool never hides a builtin of Python; `call_tool` reaches every tool.
        if name.isidentifier() and not keyword.iskeyword(name) and not hasattr(builtins, name):
            names.setdefault(name, _function(name, parameters))
    return run(code, most, names)


def call_tool(name: str, /, **arguments: Any) -> Any:
    """Calls a tool by name, and returns its return value.

    Raises:
        ToolError: The tool failed, or was not called.
    """
    # The sandbox sets this function for runs with an answerer.
    answer = globals()["_strata_ask"]({"name": name, "arguments": arguments})
    if "error" in answer:
        raise ToolError(answer["error"])
    return answer["value"]


def _function(name: str, parameters: list[str]) -> Any:
    def function(*values: Any, **arguments: Any) -> Any:
        if len(values) > len(parameters):
            raise TypeError(f"{name}() takes {', '.join(parameters) or 'no arguments'}")
        for parameter, value in zip(parameters, values, strict=False):
            if parameter in arguments:
                raise TypeError(f"{name}() got multiple values for argument {parameter!r}")
            arguments[parameter] = value
        return call_tool(name, **arguments)

    function.__name__ = function.__qualname__ = name
    return function


def run(code: str, most: int, names: dict[str, Any] | None = None) -> dict[str, Any]:
    """Runs code as a script, in a new ``__main__`` module.

    Args:
        code: Python; ``await`` is allowed outside of functions.
        most: Maximum number of characters of the value, and of the traceback.
        names: Additional globals of the code.

    Returns:
        ``value``: the `repr` of the last statement if it is an expression and not None.
        ``error``: the exception, with ``type``, ``message`` and ``traceback``.
    """
    sys.argv = ["code.py"]
    module = types.ModuleType("__main__")
    module.__dict__.update(names or {})
    sys.modules["__main__"] = module
    linecache.cache[_FILE] = (len(code), None, code.splitlines(keepends=True), _FILE)
    try:
        _execute(code, module)
        value = module.__dict__.get(_VALUE)
        return {} if value is None else {"value": _cut(repr(value), most)}
    except MemoryError:
        # The sandbox reports the memory limit.
        raise
    except SystemExit as error:
        if error.code is None or (isinstance(error.code, int) and error.code == 0):
            return {}
        return {"error": _error(error, most)}
    except BaseException as error:  # noqa: BLE001 - every exception of the code is reported
        return {"error": _error(error, most)}


def run_javascript(code: str, around: str, most: int) -> dict[str, Any]:
    """Runs JavaScript with Node, as a script in which ``require`` is available.

    Args:
        code: The script; if its last value is a promise, it is awaited.
        around: The script that executes it (``code_child.js``).
        most: Maximum number of characters of the value, and of the traceback.

    Returns:
        The same as `run`.
    """
    for name, content in (("code.js", code), ("around.js", around)):
        pathlib.Path(name).write_text(content, "utf-8")
    try:
        # Node must stay within the memory that the sandbox allows.
        command = ["node", "--max-old-space-size=512", "around.js", str(most)]
        process = subprocess.run(command, check=False)  # noqa: S603 - we are in the jail
    except FileNotFoundError:
        return _error_answer("NotAvailable", "JavaScript cannot be run: this server has no Node.")
    except OSError:
        return _error_answer(
            "NotAvailable", "JavaScript cannot be run: this server lets code start no programs."
        )
    try:
        answer = json.loads(pathlib.Path("answer.json").read_text("utf-8"))
    except (OSError, ValueError):
        answer = None
    if not isinstance(answer, dict) or (process.returncode and "error" not in answer):
        return {} if process.returncode == 0 else _error_answer(
            "Exit", f"Node ended with exit code {process.returncode}."
        )  # fmt: skip
    return answer


def _error_answer(kind: str, message: str) -> dict[str, Any]:
    return {"error": {"type": kind, "message": message}}


def _execute(code: str, module: types.ModuleType) -> None:
    tree = ast.parse(code, _FILE)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        name = ast.Name(_VALUE, ast.Store())
        kept = ast.Assign([name], last.value)
        tree.body[-1] = ast.fix_missing_locations(ast.copy_location(kept, last))
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    # The future statements of this module do not apply to the code.
    compiled = compile(tree, _FILE, "exec", flags, dont_inherit=True)
    if compiled.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(compiled, module.__dict__))  # noqa: S307 - running code is the purpose
    else:
        exec(compiled, module.__dict__)  # noqa: S102 - running code is the purpose


def _error(error: BaseException, most: int) -> dict[str, str]:
    description = {"type": type(error).__name__[:100], "message": "(its message cannot be read)"}
    # The code defines the exception class, so its methods may raise, too.
    with contextlib.suppress(BaseException):
        description["message"] = _cut(str(error), most)
    with contextlib.suppress(BaseException):
        description["traceback"] = _trace(error, most)
    return description


def _trace(error: BaseException, most: int) -> str:
    report = traceback.TracebackException.from_exception(error)
    seen: set[int] = set()
    reports: list[traceback.TracebackException | None] = [report]
    while reports:
        current = reports.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        # Only lines of the code: frames of this module or of libraries do not help the model.
        own = [frame for frame in current.stack if frame.filename == _FILE]
        current.stack = traceback.StackSummary.from_list(own[-_FRAMES:])
        reports += [
            current.__cause__,
            current.__context__,
            *(getattr(current, "exceptions", None) or []),
        ]
    text = "".join(report.format())
    # The exception is at the end, so the beginning is cut.
    return text if len(text) <= most else "...\n" + text[-most:]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}... [{len(text):,} characters in all]"
