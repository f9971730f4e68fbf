"""From the source of a tool to its name, description and schema."""

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
_OF_METHODS = ("self", "cls")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class DerivedTool:
    """What the source of a tool says of it.

    Attributes:
        function: Name of the function that is called.
        description: The docstring up to its sections; may be empty.
        parameters: JSON schema of the arguments, an object schema without other members.
            Like the built-in tools' schemas it requires what has no default; the agent loop makes
            the rest nullable where a provider wants strict schemas.
        takes_agent_state: The function has a parameter ``agent_state``, which no model sees.
    """

    function: str
    description: str
    parameters: dict[str, Any]
    takes_agent_state: bool = False


def derive_tool(source: str, function: str = "") -> DerivedTool:
    """Reads a tool from its source; nothing of it is run.

    The tool is the one function of the module whose name does not begin with ``_``. Of several,
    `function` says which.

    Args:
        source: Python source.
        function: Name of the function, where there are several.

    Raises:
        SourceError: No tool can be made of it; everything that is wrong is named.
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
        raise SourceError([Problem(f"is no Python: {error.msg}", error.lineno or 0)]) from None
    except ValueError as error:
        raise SourceError([Problem(f"is no Python: {error}")]) from None


def _pick(module: ast.Module, name: str) -> _Function:
    every = {each.name: each for each in module.body if isinstance(each, _Function)}
    public = {key: each for key, each in every.items() if not key.startswith("_")}
    if len(public) == 1:
        return next(iter(public.values()))
    if name in public:
        return public[name]
    if not public:
        hint = f", only {', '.join(every)}" if every else ""
        raise SourceError([Problem(f"holds no public function at its top level{hint}")])
    raise SourceError(
        [
            Problem(
                f"holds several public functions ({', '.join(public)}): name the tool like the one"
                " that is meant, or begin the names of the others with _",
                min(each.lineno for each in public.values()),
            )
        ]
    )


@lru_cache(maxsize=512)
def takes_agent_state(source: str, function: str) -> bool:
    """Whether a function of a source has a parameter ``agent_state``.

    Args:
        source: Source that a schema was derived from before.
        function: Name of the function.
    """
    if AGENT_STATE not in source:
        return False
    # Of two of one name the last counts, as for the schema.
    named = {each.name: each for each in _parse(source).body if isinstance(each, _Function)}
    meant = named.get(function)
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
        if parameter.arg in _OF_METHODS:
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
    """Every parameter that takes a value by name, with its default."""
    given: Sequence[ast.expr | None] = [
        *[None] * (len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)),
        *arguments.defaults,
    ]
    yield from list(zip([*arguments.posonlyargs, *arguments.args], given, strict=True))[
        len(arguments.posonlyargs) :
    ]
    yield from zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)


def _property(
    parameter: ast.arg, default: ast.expr | None, annotations: Annotations, documented: Docstring
) -> dict[str, Any]:
    if parameter.annotation is None:
        raise AnnotationError(f"has no annotation; write {parameter.arg}: str, or what it is")
    schema = annotations.schema(parameter.annotation)
    said = documented.arguments.get(parameter.arg)
    if said:
        schema["description"] = said
    value = _plain_default(default)
    if value is not None:
        schema["default"] = value
    return schema


def _plain_default(default: ast.expr | None) -> Any:
    if default is None:
        return None
    try:
        value = ast.literal_eval(default)
        # As it will come back from the database, where a tuple is a list.
        return json.loads(json.dumps(value, allow_nan=False))
    except (ValueError, TypeError, SyntaxError):
        return None


def _shape_problems(function: _Function) -> Iterator[Problem]:
    if not _NAME.fullmatch(function.name):
        text = f"the name {function.name} must be of ASCII letters, digits and _"
        yield Problem(text, function.lineno)
    arguments = function.args
    for parameter in arguments.posonlyargs:
        text = "comes before '/', but models give arguments by name; take the '/' out"
        yield Problem(text, parameter.lineno, parameter.arg)
    for rest, sign in ((arguments.vararg, "*"), (arguments.kwarg, "**")):
        if rest is not None:
            text = f"is {sign}{rest.arg}, which no schema can describe; name every parameter"
            yield Problem(text, rest.lineno, rest.arg)
    for parameter, _ in _parameters(arguments):
        if parameter.arg in _OF_METHODS:
            text = "belongs to a method; a tool is a function of its own"
            yield Problem(text, parameter.lineno, parameter.arg)
        elif not parameter.arg.isascii():
            yield Problem("must be of ASCII letters, digits and _", parameter.lineno, parameter.arg)


def _documentation_problems(function: _Function, documented: Docstring) -> Iterator[Problem]:
    arguments = function.args
    there = {each.arg for each, _ in _parameters(arguments)}
    there.update(argument.arg for argument in arguments.posonlyargs)
    there.update(each.arg for each in (arguments.vararg, arguments.kwarg) if each is not None)
    for name in documented.arguments:
        if name not in there:
            yield Problem(
                "is described in the docstring but is no parameter", function.lineno, name
            )
