"""What stands around the code of the tools that run some. Run in the jail, as text: see `code.py`.

The code is the model's and can do here what it likes: nothing that this gives back is believed.
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
    """A tool failed, or was not called; the text says why."""


def run_with_tools(code: str, most: int, tools: dict[str, list[str]]) -> dict[str, Any]:
    """Runs code that finds tools as functions.

    Args:
        code: See `run`.
        most: See `run`.
        tools: Names of parameters by name of the tool.

    Returns:
        The same as `run`.
    """
    given: dict[str, Any] = {"call_tool": call_tool, "ToolError": ToolError}
    for name, parameters in tools.items():
        # What Python has itself under a name stays; `call_tool` reaches every tool.
        if name.isidentifier() and not keyword.iskeyword(name) and not hasattr(builtins, name):
            given.setdefault(name, _function(name, parameters))
    return run(code, most, given)


def call_tool(name: str, /, **arguments: Any) -> Any:
    """Calls a tool of any name; returns what it returned.

    Raises:
        ToolError: The tool failed, or was not called.
    """
    # Set by the sandbox for code that has somebody to ask.
    told = globals()["_strata_ask"]({"name": name, "arguments": arguments})
    if "error" in told:
        raise ToolError(told["error"])
    return told["value"]


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


def run(code: str, most: int, given: dict[str, Any] | None = None) -> dict[str, Any]:
    """Runs code as a script, in a module of its own.

    Args:
        code: Python; ``await`` may stand outside of functions.
        most: Characters of the value, and of the traceback, at most.
        given: What the code finds among its globals.

    Returns:
        ``value``, the last statement's if that is an expression and not None, as `repr` says it;
        ``error``, what was raised, with ``type``, ``message`` and ``traceback``.
    """
    sys.argv = ["code.py"]
    module = types.ModuleType("__main__")
    module.__dict__.update(given or {})
    sys.modules["__main__"] = module
    linecache.cache[_FILE] = (len(code), None, code.splitlines(keepends=True), _FILE)
    try:
        _execute(code, module)
        value = module.__dict__.get(_VALUE)
        return {} if value is None else {"value": _cut(repr(value), most)}
    except MemoryError:
        # The sandbox names its limit.
        raise
    except SystemExit as error:
        if error.code is None or (isinstance(error.code, int) and error.code == 0):
            return {}
        return {"error": _error(error, most)}
    except BaseException as error:  # noqa: BLE001 - whatever code raises is told
        return {"error": _error(error, most)}


def run_javascript(code: str, around: str, most: int) -> dict[str, Any]:
    """Runs JavaScript with Node, as a script in which ``require`` is known.

    Args:
        code: The script; a promise as its last value is waited for.
        around: What stands around it.
        most: Characters of the value, and of the traceback, at most.

    Returns:
        The same as `run`.
    """
    for name, content in (("code.js", code), ("around.js", around)):
        pathlib.Path(name).write_text(content, "utf-8")
    try:
        # No more memory than the sandbox gives, and no threads that are not needed.
        command = ["node", "--max-old-space-size=512", "around.js", str(most)]
        process = subprocess.run(command, check=False)  # noqa: S603 - we are in the jail
    except FileNotFoundError:
        return _told("NotAvailable", "JavaScript cannot be run: this server has no Node.")
    except OSError:
        return _told("NotAvailable", "JavaScript cannot be run: this server lets code start no"
                     " programs.")  # fmt: skip
    try:
        told = json.loads(pathlib.Path("answer.json").read_text("utf-8"))
    except (OSError, ValueError):
        told = None
    if not isinstance(told, dict) or (process.returncode and "error" not in told):
        return {} if process.returncode == 0 else _told(
            "Exit", f"Node ended with exit code {process.returncode}."
        )  # fmt: skip
    return told


def _told(kind: str, message: str) -> dict[str, Any]:
    return {"error": {"type": kind, "message": message}}


def _execute(code: str, module: types.ModuleType) -> None:
    tree = ast.parse(code, _FILE)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        name = ast.Name(_VALUE, ast.Store())
        kept = ast.Assign([name], last.value)
        tree.body[-1] = ast.fix_missing_locations(ast.copy_location(kept, last))
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    # Not with the future statements of this text.
    compiled = compile(tree, _FILE, "exec", flags, dont_inherit=True)
    if compiled.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(compiled, module.__dict__))  # noqa: S307 - it is what we are for
    else:
        exec(compiled, module.__dict__)  # noqa: S102 - it is what we are for


def _error(error: BaseException, most: int) -> dict[str, str]:
    told = {"type": type(error).__name__[:100], "message": "(its message cannot be read)"}
    # Its texts are made by the code, and may raise again.
    with contextlib.suppress(BaseException):
        told["message"] = _cut(str(error), most)
    with contextlib.suppress(BaseException):
        told["traceback"] = _trace(error, most)
    return told


def _trace(error: BaseException, most: int) -> str:
    report = traceback.TracebackException.from_exception(error)
    seen: set[int] = set()
    reports: list[traceback.TracebackException | None] = [report]
    while reports:
        each = reports.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        # Lines of the code alone: those around it are ours or the library's, and say nothing.
        own = [frame for frame in each.stack if frame.filename == _FILE]
        each.stack = traceback.StackSummary.from_list(own[-_FRAMES:])
        reports += [each.__cause__, each.__context__, *(getattr(each, "exceptions", None) or [])]
    text = "".join(report.format())
    # What went wrong stands at the end.
    return text if len(text) <= most else "...\n" + text[-most:]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}... [{len(text):,} characters in all]"
