"""Runs custom tools in the sandbox."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any, Protocol

from strata.protocol.errors import (
    DataLossError,
    FailedPreconditionError,
    FieldViolation,
    InvalidArgumentError,
    UnavailableError,
)
from strata.shared.context import current
from strata.shared.json_text import PACKED_JSON_DEPTH, JsonTextError, parse_json
from strata.shared.redaction import Redactor
from strata.shared.sandbox import (
    CONVERSION_MODULE,
    Isolation,
    Limits,
    RunResult,
    RunStatus,
    Sandbox,
    SandboxRun,
)
from strata.tool_execution.custom.agent_memory import AgentBlocks, BlockMemory
from strata.tool_execution.custom.secrets import SecretBox
from strata.tool_execution.domain.network_policy import NetworkPolicy
from strata.tool_execution.domain.packages import Packages, PackagesError
from strata.tool_execution.domain.printed import PrintedLines
from strata.tool_execution.domain.registry import Runnable, not_built
from strata.tool_execution.domain.tools import (
    CallingAgent,
    Effect,
    Output,
    Tool,
    ToolCall,
    ToolError,
    ToolType,
)
from strata.tool_execution.schema import derive

_MAIN = "_strata_main"
_STATE = "_strata_state_json"
_MAX_MESSAGE = 2_000
# Time that a call waits for packages. They are usually built when the tool is stored.
_PACKAGES_S = 40.0
# Part of the time limit of a call that is reserved for the error message.
_ANSWER_S = 0.5
# Statuses of code that was started and stopped before its end.
_STOPPED = frozenset({
    RunStatus.TIMEOUT, RunStatus.CPU, RunStatus.MEMORY, RunStatus.PROCESSES, RunStatus.OUTPUT,
    RunStatus.KILLED,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class SandboxOutput:
    """The output of a run in the sandbox.

    Attributes:
        output: The tool's output.
        isolation: How the run was isolated; None for a tool of an MCP server.
        blocks: New texts of memory blocks by label, for a tool that takes ``agent_state``.
    """

    output: Output
    isolation: Isolation | None = None
    blocks: Mapping[str, str] = field(default_factory=dict)


class SandboxRunner:
    """Runs custom tools in the sandbox.

    Args:
        sandbox: The sandbox.
        secrets: Decrypts the secrets of the tool.
        packages: Provides the packages of tools; None if they are switched off.
        network: The operator's network policy for tools.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        secrets: SecretBox,
        packages: Packages | None = None,
        network: NetworkPolicy | None = None,
    ) -> None:
        self._network = network or NetworkPolicy()
        self._packages = packages
        self._sandbox = sandbox
        self._secrets = secrets

    @property
    def isolation(self) -> str:
        """Isolation level of calls."""
        return self._sandbox.isolation.label

    async def prepare(self, tool: Tool) -> None:
        """Checks the hosts of a tool, and builds its packages before the first call needs them.

        Raises:
            InvalidArgumentError: ``pip_requirements`` cannot be installed, or ``allowed_hosts``
                are not allowed.
            UnavailableError: The packages cannot be installed now.
            UnimplementedError: Packages or network access for tools are switched off on this
                server (``NOT_BUILT``).
        """
        self._check_hosts(tool.own.allowed_hosts if tool.own is not None else ())
        requirements = tool.own.pip_requirements if tool.own is not None else ()
        if not requirements:
            return
        if self._packages is None:
            raise not_built(
                "pip_requirements",
                "Packages for tools are switched off on this server: a tool can use the standard"
                " library only. Remove pip_requirements.",
            )
        try:
            await self._packages.folder(requirements)
        except PackagesError as error:
            if error.temporary:
                raise UnavailableError(str(error)) from error
            raise InvalidArgumentError(
                f"The packages of the tool cannot be installed: {error}",
                violations=[FieldViolation("pip_requirements", str(error))],
            ) from error

    async def run(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        sealed: Mapping[str, bytes],
        state: AgentBlocks | None = None,
    ) -> SandboxOutput:
        """Runs a tool with valid arguments.

        Args:
            tool: A custom tool.
            arguments: Arguments by name.
            sealed: Encrypted secrets of the project by name; the tool gets those it declares.
            state: The agent's memory blocks, for a tool that takes ``agent_state``. Changes are
                returned, not stored.

        Raises:
            ToolError: The tool failed; the message is written for the model, without secrets.
            UnavailableError: The sandbox is not running.
        """
        if tool.own is None:
            raise ToolError(f"{tool.name} cannot be run: it has no source code.")
        hosts = self._hosts(tool)
        environment = self._environment(tool, sealed)
        arguments_by_name = dict(arguments)
        if state is not None:
            arguments_by_name[_STATE] = state.as_json()
        result = await self._sandbox.run(
            SandboxRun(
                source=_with_entry_point(
                    tool.own.source_code, tool.own.function, state is not None
                ),
                function=_MAIN,
                arguments_json=json.dumps(arguments_by_name, ensure_ascii=False),
                environment=environment,
                hosts=hosts,
                packages=await self._folder(tool),
                limits=Limits(),
            )
        )
        redactor = Redactor(environment)
        # On a thread: the value can have some MB.
        output = await asyncio.to_thread(_output, tool, result, redactor)
        if state is None:
            return SandboxOutput(output, result.isolation)
        # The tool controls its process and can return anything: read only these two members.
        answer = output.value if isinstance(output.value, Mapping) else {}
        blocks = state.checked(tool.name, answer.get("blocks", {}))
        if blocks and tool.effect is Effect.READ_ONLY:
            raise ToolError(
                f"{tool.name} was run, but nothing of what it changed in memory was stored: it is"
                " declared read-only."
            )
        return SandboxOutput(replace(output, value=answer.get("value")), result.isolation, blocks)

    def _check_hosts(self, hosts: Sequence[str]) -> None:
        if hosts and not self._network.allowed:
            raise not_built(
                "allowed_hosts",
                "Network access for tools is switched off on this server. Remove allowed_hosts.",
            )
        refused = self._network.refused(hosts)
        if refused:
            problem = f"names {refused[0]}, which this server does not let tools reach"
            raise InvalidArgumentError(
                f"The tool cannot have this network access: allowed_hosts {problem}.",
                violations=[FieldViolation("allowed_hosts", problem)],
            )

    def _hosts(self, tool: Tool) -> tuple[str, ...]:
        """Returns the hosts of a call. The policy may have changed since the tool was stored."""
        hosts = tool.own.allowed_hosts if tool.own is not None else ()
        if hosts and not self._network.allowed:
            problem = "network access for tools is switched off on this server"
        elif refused := self._network.refused(hosts):
            problem = f"this server does not let tools reach {', '.join(refused)}"
        else:
            return hosts
        raise ToolError(f"{tool.name} cannot be run: {problem}.")

    async def _folder(self, tool: Tool) -> str | None:
        requirements = tool.own.pip_requirements if tool.own is not None else ()
        if not requirements:
            return None
        if self._packages is None:
            raise ToolError(
                f"{tool.name} cannot be run: it needs packages, and they are switched off on this"
                " server."
            )
        remaining_s = current().remaining()
        seconds = (
            _PACKAGES_S
            if remaining_s is None
            else max(0.0, min(_PACKAGES_S, remaining_s - _ANSWER_S))
        )
        try:
            async with asyncio.timeout(seconds):
                return await self._packages.folder(requirements)
        except TimeoutError:
            problem = "they are still being fetched. Try again later."
        except PackagesError as error:
            problem = str(error)
        raise ToolError(f"{tool.name} cannot be run without its packages: {problem}")

    def _environment(self, tool: Tool, sealed: Mapping[str, bytes]) -> dict[str, str]:
        own = tool.own
        secret_names = own.secret_names if own is not None else ()
        missing = [name for name in secret_names if name not in sealed]
        if missing:
            raise ToolError(
                f"{tool.name} needs the secret {', '.join(missing)}, which is not stored."
                " Someone with an admin key must store it."
            )
        try:
            return {name: self._secrets.open(name, sealed[name]) for name in secret_names}
        except (DataLossError, FailedPreconditionError) as error:
            raise ToolError(f"{tool.name} cannot be run: {error.message}") from None


class McpRunner(Protocol):
    """Runs tools of MCP servers."""

    async def run(self, tool: Tool, arguments: Mapping[str, Any]) -> Output:
        """Runs a tool with valid arguments.

        Raises:
            ToolError: The tool failed or must not be run; the message is written for the model.
        """
        ...

    def keep_connected(self, server_ids: Collection[str], away: Collection[str]) -> None:
        """Opens sessions with servers in the background and reads their tools."""
        ...


@dataclass(frozen=True, slots=True)
class ToolRunners:
    """Runs the project's own tools.

    Attributes:
        sandbox: Runs custom tools.
        mcp: Runs tools of MCP servers.
        memory: Memory blocks for tools that take ``agent_state``.
    """

    sandbox: SandboxRunner
    mcp: McpRunner
    memory: BlockMemory


class OwnTools:
    """Runs the project's own tools for the calls of one reply; an executor of the engine.

    Args:
        runnable: The tools and their secrets.
        runners: Runs the tools.
    """

    def __init__(self, runnable: Runnable, runners: ToolRunners) -> None:
        self._runnable = runnable
        self._runners = runners

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The tools by name."""
        return self._runnable.tools

    @property
    def names(self) -> Collection[str]:
        """Names of the tools that it runs."""
        return self._runnable.tools.keys()

    async def run(self, call: ToolCall, arguments: dict[str, Any], caller: CallingAgent) -> Output:
        """Runs one call with valid arguments."""
        tool = self._runnable.tools[call.name]
        if tool.type is ToolType.MCP:
            return await self._runners.mcp.run(tool, arguments)
        if tool.type is not ToolType.CUSTOM:
            raise ToolError(f"{tool.name} is run by the client, not here.")
        if not takes_agent_state(tool):
            return (await self._runners.sandbox.run(tool, arguments, self._runnable.sealed)).output
        state = await self._runners.memory.read(caller.agent_id)
        try:
            ran = await self._runners.sandbox.run(tool, arguments, self._runnable.sealed, state)
            # The new texts may contain untrusted content that the tool or the model has read.
            written = (*caller.taint, *(("web",) if tool.reads_web else ()))
            edits = await self._runners.memory.store(call, caller, state, ran.blocks, written)
        except ToolError as error:
            # The message may be that of an exception of the tool, which has read the memory.
            error.taint = (*error.taint, *state.taint)
            raise
        return replace(ran.output, memory_edits=edits, taint=state.taint)


def takes_agent_state(tool: Tool) -> bool:
    """Returns whether a tool takes the memory of the calling agent (``agent_state``)."""
    own = tool.own
    return own is not None and derive.takes_agent_state(own.source_code, own.function)


@cache
def _source_of(module: str) -> str:
    return files("strata.tool_execution.custom").joinpath(f"{module}.py").read_text("utf-8")


def _with_entry_point(source: str, function: str, stateful: bool) -> str:
    """Returns the source with an appended entry point, so that its line numbers stay the same."""
    text = f"{source}\n\nfrom {CONVERSION_MODULE} import _strata_call\n\n"
    if not stateful:
        return (
            f"{text}def {_MAIN}(**_strata_arguments):\n"
            f"    return _strata_call({function}, _strata_arguments)\n"
        )
    return (
        f"{text}{_source_of('agent_state')}\n\n"
        # For annotations of sources that do not define AgentState themselves.
        f"globals().setdefault('AgentState', _StrataAgentState)\n\n"
        f"def {_MAIN}({_STATE}, **_strata_arguments):\n"
        f"    return _strata_stateful(\n"
        f"        lambda _strata_state: _strata_call(\n"
        f"            {function}, {{**_strata_arguments, 'agent_state': _strata_state}}\n"
        f"        ),\n"
        f"        {_STATE},\n"
        f"    )\n"
    )


def _output(tool: Tool, result: RunResult, redactor: Redactor) -> Output:
    failed = f"Error executing function {tool.name}:"
    printed = PrintedLines.of(redactor.text(result.stdout), redactor.text(result.stderr))
    if result.status is RunStatus.OK:
        try:
            value = parse_json(result.value_json or "null", max_depth=PACKED_JSON_DEPTH)
        except JsonTextError:
            raise ToolError(
                f"{failed} its return value is not JSON.", end=RunStatus.BAD_RESULT, printed=printed
            ) from None
        return Output(redactor.value(value), printed=printed)
    failure = result.failure
    if result.status is RunStatus.TOOL_ERROR and failure is not None:
        # The tool wrote this text; it is redacted here and shortened below.
        words = redactor.text(f"{failure.type}: {failure.message}")
    else:
        words = redactor.text(result.detail) or _ENDS.get(result.status, "it did not end normally.")
    text = f"{failed} {words[:_MAX_MESSAGE]}"
    if result.status not in _STOPPED:
        raise ToolError(text, end=result.status, printed=printed)
    # A tool without network access cannot change anything outside of its sandbox.
    acts = tool.own is not None and tool.own.allowed_hosts and tool.effect is not Effect.READ_ONLY
    also = (
        "It ran until then and can reach the network: whether it had its effect is unknown. Find"
        " out before you call it again."
        if acts
        else "It ran until then, and changed nothing outside of its sandbox."
    )
    raise ToolError(f"{text} {also}", unknown=bool(acts), end=result.status, printed=printed)


_ENDS = {
    RunStatus.TIMEOUT: "it took too long and was stopped.",
    RunStatus.CPU: "it used too much CPU time and was stopped.",
    RunStatus.MEMORY: "it used too much memory and was stopped.",
    RunStatus.PROCESSES: "it started too many processes and was stopped.",
    RunStatus.OUTPUT: "it printed too much and was stopped.",
    RunStatus.RESULT_TOO_LARGE: "its return value is too large.",
    RunStatus.BAD_RESULT: "its return value cannot be converted to JSON.",
    RunStatus.KILLED: "it was killed.",
    RunStatus.REFUSED: "this server cannot isolate it well enough, so it was not run.",
}
