"""Derives name, description and schema of a custom tool from its source."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from strata.shared.json_schemas import unstorable
from strata.tool_execution.schema.annotations import Annotations
from strata.tool_execution.schema.docstrings import Docstring, read_docstring
from strata.tool_execution.schema.names import ModuleNames
from strata.tool_execution.schema.problems import AnnotationError, Problem, SourceError

MAX_SOURCE_CHARS = 100_000
MAX_DESCRIPTION_CHARS = 4_096
AGENT_STATE = "agent_state"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_METHOD_PARAMETERS = ("self", "cls")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class DerivedTool:
    """A tool definition derived from source.

    Attributes:
        function: Name of the function to call.
        description: The docstring up to its first section; may be empty.
        parameters: JSON schema of the arguments, an object schema without additional properties.
            Parameters without a default are required, as in built-in tools. The agent loop makes
            the others nullable for providers that need strict schemas.
        takes_agent_state: Whether the function has a parameter ``agent_state``, which models do
            not see.
    """

    function: str
    description: str
    parameters: dict[str, Any]
    takes_agent_state: bool = False


def derive_tool(source: str, function: str = "") -> DerivedTool:
    """Derives a tool from its source without running it.

    The tool is the public function of the module, whose name does not begin with ``_``.

    Args:
        source: Python source.
        function: Name of the function; needed if the module has several public ones.

    Raises:
        SourceError: The source is not a valid tool; the error lists all problems.
    """
    if len(source) > MAX_SOURCE_CHARS:
        raise SourceError([Problem(f"the source exceeds {MAX_SOURCE_CHARS} characters")])
    try:
        module = _parse(source)
        return _derive(module, _pick(module, function))
    except (RecursionError, MemoryError):
        raise SourceError([Problem("the source is nested too deeply")]) from None


def _parse(source: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except SyntaxError as error:
        raise SourceError(
            [Problem(f"is not valid Python: {error.msg}", error.lineno or 0)]
        ) from None
    except ValueError as error:
        raise SourceError([Problem(f"is not valid Python: {error}")]) from None


def _pick(module: ast.Module, name: str) -> _Function:
    every = {
        statement.name: statement for statement in module.body if isinstance(statement, _Function)
    }
    public = {key: function for key, function in every.items() if not key.startswith("_")}
    if len(public) == 1:
        return next(iter(public.values()))
    if name in public:
        return public[name]
    if not public:
        hint = f", only {', '.join(every)}" if every else ""
        raise SourceError([Problem(f"has no public function at its top level{hint}")])
    raise SourceError(
        [
            Problem(
                f"has several public functions ({', '.join(public)}): give the tool the name of"
                " one of them, or begin the names of the others with _",
                min(function.lineno for function in public.values()),
            )
        ]
    )


@lru_cache(maxsize=512)
def takes_agent_state(source: str, function: str) -> bool:
    """Returns whether a function has a parameter ``agent_state``.

    Args:
        source: Source of a valid tool.
        function: Name of the function.
    """
    if AGENT_STATE not in source:
        return False
    # If two functions have the name, the last one counts, as in `derive_tool`.
    names = {
        statement.name: statement
        for statement in _parse(source).body
        if isinstance(statement, _Function)
    }
    meant = names.get(function)
    return meant is not None and any(
        parameter.arg == AGENT_STATE for parameter, _ in _parameters(meant.args)
    )


def _derive(module: ast.Module, function: _Function) -> DerivedTool:
    problems = list(_shape_problems(function))
    documented = read_docstring(ast.get_docstring(function) or "")
    annotations = Annotations(ModuleNames(module))
    properties: dict[str, Any] = {}
    required = []
    takes_agent_state = False
    for parameter, default in _parameters(function.args):
        if parameter.arg == AGENT_STATE:
            takes_agent_state = True
            continue
        if parameter.arg in _METHOD_PARAMETERS:
            continue
        try:
            properties[parameter.arg] = _property(parameter, default, annotations, documented)
        except AnnotationError as error:
            problems.append(Problem(str(error), parameter.lineno, parameter.arg))
        if default is None:
            required.append(parameter.arg)
    problems += _documentation_problems(function, documented)
    unclean = unstorable([documented.description, properties])
    if unclean:
        problems.append(Problem(f"one of its texts or values {unclean}", function.lineno))
    if problems:
        raise SourceError(problems)
    return DerivedTool(
        function.name,
        documented.description,
        {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        },
        takes_agent_state,
    )


def _parameters(arguments: ast.arguments) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    """Yields every parameter that can be passed by name, with its default."""
    defaults: Sequence[ast.expr | None] = [
        *[None] * (len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)),
        *arguments.defaults,
    ]
    yield from list(zip([*arguments.posonlyargs, *arguments.args], defaults, strict=True))[
        len(arguments.posonlyargs) :
    ]
    yield from zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)


def _property(
    parameter: ast.arg, default: ast.expr | None, annotations: Annotations, documented: Docstring
) -> dict[str, Any]:
    if parameter.annotation is None:
        raise AnnotationError(f"has no annotation; write its type, such as {parameter.arg}: str")
    if annotations.is_field(default):
        raise AnnotationError(
            "has pydantic's Field as its default, which a function would get as its value; write"
            f" {parameter.arg}: Annotated[{ast.unparse(parameter.annotation)}, Field(...)]"
        )
    schema = annotations.schema(parameter.annotation)
    description = documented.arguments.get(parameter.arg)
    if description:
        schema["description"] = description
    value = _plain_default(default)
    if value is not None:
        schema["default"] = value
    return schema


def _plain_default(default: ast.expr | None) -> Any:
    if default is None:
        return None
    try:
        value = ast.literal_eval(default)
        # The form in which the database returns it: a tuple becomes a list.
        return json.loads(json.dumps(value, allow_nan=False))
    except (ValueError, TypeError, SyntaxError):
        return None


def _shape_problems(function: _Function) -> Iterator[Problem]:
    if not _NAME.fullmatch(function.name):
        text = f"the name {function.name} must consist of ASCII letters, digits and _"
        yield Problem(text, function.lineno)
    arguments = function.args
    for parameter in arguments.posonlyargs:
        text = "comes before '/', but models pass arguments by name; remove the '/'"
        yield Problem(text, parameter.lineno, parameter.arg)
    for rest, sign in ((arguments.vararg, "*"), (arguments.kwarg, "**")):
        if rest is not None:
            text = f"is {sign}{rest.arg}, which no schema can describe; name every parameter"
            yield Problem(text, rest.lineno, rest.arg)
    for parameter, _ in _parameters(arguments):
        if parameter.arg in _METHOD_PARAMETERS:
            text = "belongs to a method; a tool must be a module-level function"
            yield Problem(text, parameter.lineno, parameter.arg)
        elif not parameter.arg.isascii():
            yield Problem(
                "must consist of ASCII letters, digits and _", parameter.lineno, parameter.arg
            )


def _documentation_problems(function: _Function, documented: Docstring) -> Iterator[Problem]:
    arguments = function.args
    there = {parameter.arg for parameter, _ in _parameters(arguments)}
    there.update(argument.arg for argument in arguments.posonlyargs)
    there.update(rest.arg for rest in (arguments.vararg, arguments.kwarg) if rest is not None)
    for name in documented.arguments:
        if name not in there:
            yield Problem(
                "is described in the docstring but is not a parameter", function.lineno, name
            )
