"""Converts requests to the tool registry into the domain, and checks them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from strata.api.common.v1 import tool_pb2
from strata.api.tool_execution.v1 import tool_service_pb2 as pb
from strata.shared.checks import Checks
from strata.shared.convert.tools import EFFECTS
from strata.shared.idempotency.keys import RequestKey
from strata.shared.ids import new_id
from strata.shared.json_schemas import UnusableSchemaError, read_schema
from strata.shared.tool_returns import FUNCTION_RETURN_CHAR_LIMIT
from strata.shared.web import host_patterns as hosts
from strata.tool_execution.domain.registry import MAX_NAME
from strata.tool_execution.domain.tools import (
    Effect,
    OwnDefinition,
    Tool,
    ToolType,
)
from strata.tool_execution.packages.requirements import package_of, problem_of
from strata.tool_execution.schema import DerivedTool, SourceError, derive_tool
from strata.tool_execution.schema.derive import AGENT_STATE, MAX_DESCRIPTION_CHARS

MAX_LIST = 32
MAX_TAG = 64
MAX_RETURN_CHARS = 1_000_000
SECRET_CHARS = range(4, 16_385)
_NAME = re.compile(rf"[A-Za-z_][A-Za-z0-9_\-]{{0,{MAX_NAME - 1}}}")
_SECRET = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
# Variables that control how a program starts, and the names of Strata's own.
_RESERVED = re.compile(r"(LD_|PYTHON|STRATA_|PATH$|HOME$|IFS$|SHELL$)", re.IGNORECASE)
_TYPES = {
    tool_pb2.TOOL_TYPE_UNSPECIFIED: ToolType.CUSTOM,
    tool_pb2.TOOL_TYPE_CUSTOM: ToolType.CUSTOM,
    tool_pb2.TOOL_TYPE_CLIENT: ToolType.CLIENT,
}
# Settings of tools that run on the server. A client decides itself which calls need approval.
_NOT_FOR_CLIENTS = (
    "secret_names",
    "pip_requirements",
    "allowed_hosts",
    "default_requires_approval",
    "enable_parallel_execution",
)


@dataclass(frozen=True, slots=True)
class ReadParameters:
    """The schema of the parameters of a tool, read from a request.

    Attributes:
        schema: The schema; None if there is none or it cannot be used.
        problem: Why it cannot be used; empty if it can, or if there is none.
    """

    schema: dict[str, Any] | None = None
    problem: str = ""


def read_parameters(text: str) -> ReadParameters:
    """Reads the schema of ``parameters_json``; empty for none. A large one takes half a second."""
    if not text:
        return ReadParameters()
    try:
        return ReadParameters(read_schema(text))
    except UnusableSchemaError as error:
        return ReadParameters(problem=str(error))


def to_tool(request: pb.UpsertToolRequest, parameters: ReadParameters) -> tuple[Tool, RequestKey]:
    """Returns the tool that a request describes, with a new id.

    Args:
        request: The request.
        parameters: Its ``parameters_json``, read by `read_parameters`.

    Raises:
        InvalidArgumentError: Fields are wrong. The error names all of them, and the lines of
            problems in the source.
    """
    checks = Checks()
    kind = _TYPES.get(request.type)
    checks.unless(kind is not None, "type", "must be CUSTOM or CLIENT")
    checks.unless(request.effect in EFFECTS.from_proto, "effect", "is not a known effect")
    checks.request_id(request.request_id)
    limit = request.return_char_limit
    checks.unless(
        0 <= limit <= MAX_RETURN_CHARS, "return_char_limit", f"must be 0 to {MAX_RETURN_CHARS}"
    )
    tags = checks.texts(request.tags, "tags", _tag_problem, most=MAX_LIST)
    own = _own_definition(request, checks)
    if kind is ToolType.CLIENT:
        derived = _client(request, parameters, checks)
    else:
        derived = _custom(request.source_code, request.name, parameters, checks)
        own = replace(own, source_code=request.source_code, function=derived.function)
    tool = Tool(
        name=request.name or derived.function,
        description=request.description or derived.description,
        type=kind or ToolType.CUSTOM,
        parameters=derived.parameters,
        effect=EFFECTS.from_proto.get(request.effect, Effect.UNDECLARED),
        parallel=request.enable_parallel_execution,
        return_char_limit=limit or FUNCTION_RETURN_CHAR_LIMIT,
        tags=tuple(sorted(set(tags))),
        own=own,
    )
    _check_names(tool, checks)
    checks.unless(
        not (derived.takes_agent_state and tool.parallel),
        "enable_parallel_execution",
        f"must be false for a tool that takes {AGENT_STATE}: concurrent calls would change the same"
        " memory",
    )
    checks.done()
    return tool, RequestKey(request.request_id, tool.version)


def _own_definition(request: pb.UpsertToolRequest, checks: Checks) -> OwnDefinition:
    """Returns the settings of a tool of the project, with a new id and without source code."""
    secrets = checks.texts(request.secret_names, "secret_names", secret_name_problem, most=MAX_LIST)
    allowed = checks.texts(request.allowed_hosts, "allowed_hosts", hosts.problem_of, most=MAX_LIST)
    requirements = checks.texts(
        request.pip_requirements, "pip_requirements", problem_of, most=MAX_LIST
    )
    packages = {package_of(requirement) for requirement in requirements}
    checks.unless(len(packages) == len(requirements), "pip_requirements", "names a package twice")
    return OwnDefinition(
        id=new_id("tool"),
        requires_approval=request.default_requires_approval,
        pip_requirements=tuple(requirements),
        secret_names=tuple(sorted(secrets)),
        allowed_hosts=tuple(sorted(set(allowed))),
    )


def _check_names(tool: Tool, checks: Checks) -> None:
    """Checks the description and the name of a tool."""
    checks.unless("\0" not in tool.description, "description", "must not contain NUL")
    checks.unless(
        len(tool.description.strip()) > 0 and len(tool.description) <= MAX_DESCRIPTION_CHARS,
        "description",
        f"must be set, here or as the docstring, with at most {MAX_DESCRIPTION_CHARS} characters",
    )
    checks.unless(
        bool(_NAME.fullmatch(tool.name)),
        "name",
        f"must be letters, digits, - and _, at most {MAX_NAME}, beginning with a letter",
    )


def to_dry_run(source: str, function: str = "") -> Tool:
    """Returns a tool for source code that is run once and not stored.

    Args:
        source: Python source.
        function: Name of the function to run; needed if the source has several.

    Raises:
        InvalidArgumentError: The source is not a valid tool; the error names each problem.
    """
    checks = Checks()
    derived = _custom(source, function, ReadParameters(), checks)
    checks.unless(
        function in ("", derived.function),
        "function_name",
        f"must be the name of a public function of the source: {derived.function}",
    )
    checks.done()
    return Tool(
        name=derived.function,
        description=derived.description,
        type=ToolType.CUSTOM,
        parameters=derived.parameters,
        effect=Effect.UNDECLARED,
        own=OwnDefinition(id=new_id("tool"), source_code=source, function=derived.function),
    )


def check_secret(request: pb.PutSecretRequest) -> None:
    """Checks a new secret. Errors never contain its value.

    Raises:
        InvalidArgumentError: The name or the value is not allowed.
    """
    checks = Checks()
    problem = secret_name_problem(request.name)
    checks.unless(not problem, "name", problem)
    checks.unless("\0" not in request.value, "value", "must not contain NUL")
    checks.unless(
        not request.value or len(request.value) in SECRET_CHARS,
        "value",
        f"must have {SECRET_CHARS.start} to {SECRET_CHARS.stop - 1} characters: a shorter one could"
        " not be recognised in what tools return and redacted",
    )
    checks.done()


def secret_name_problem(name: str) -> str:
    """Returns why a name is not allowed for a secret; empty if it is allowed."""
    if not _SECRET.fullmatch(name):
        return "must be letters, digits and _, at most 64, not beginning with a digit"
    return "is a name that the sandbox reserves" if _RESERVED.match(name) else ""


def _custom(source: str, name: str, parameters: ReadParameters, checks: Checks) -> DerivedTool:
    nothing = DerivedTool(name or "_", "_", {})
    if not source.strip() or "\0" in source:
        checks.fail("source_code", "must be Python source with one public function")
        return nothing
    try:
        derived = derive_tool(source, name)
    except SourceError as error:
        for problem in error.problems:
            checks.fail("source_code", str(problem))
        return nothing
    schema = _checked_schema(parameters, checks)
    if schema is not None:
        contradiction = _contradiction(schema, derived)
        if contradiction:
            checks.fail("parameters_json", contradiction)
        derived = replace(derived, parameters=schema)
    return derived


def _contradiction(schema: dict[str, Any], derived: DerivedTool) -> str:
    """Returns how a schema contradicts the function's parameters; empty if it does not."""
    unknown = sorted(set(schema["properties"]) - set(derived.parameters["properties"]))
    if unknown:
        return f"names {unknown[0]!r}, which the function {derived.function} does not take"
    optional = sorted(set(derived.parameters["required"]) - set(schema["required"]))
    if optional:
        return f"must require {optional[0]!r}, as the function {derived.function} does"
    return ""


def _client(
    request: pb.UpsertToolRequest, parameters: ReadParameters, checks: Checks
) -> DerivedTool:
    for field in _NOT_FOR_CLIENTS:
        checks.unless(
            not getattr(request, field), field, "must be empty for a tool that the client runs"
        )
    if request.source_code:
        derived = _custom(request.source_code, request.name, parameters, checks)
        checks.unless(
            not derived.takes_agent_state,
            "source_code",
            f"takes {AGENT_STATE}, which a tool that the client runs does not get",
        )
        return derived
    for field in ("name", "parameters_json"):
        checks.unless(
            bool(getattr(request, field)),
            field,
            "must be set for a tool that the client runs, if there is no source_code",
        )
    schema = _checked_schema(parameters, checks)
    return DerivedTool("", "", schema or {})


def _checked_schema(parameters: ReadParameters, checks: Checks) -> dict[str, Any] | None:
    if parameters.problem:
        checks.fail("parameters_json", parameters.problem)
    return parameters.schema


def _tag_problem(tag: str) -> str:
    if not tag.strip() or len(tag) > MAX_TAG or "\0" in tag:
        return f"must have 1 to {MAX_TAG} characters, no NUL among them"
    return ""
