"""Runs custom tools in the sandbox."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any, Protocol

from strata.shared.context import current
from strata.shared.errors import (
    DataLossError,
    FailedPreconditionError,
    FieldViolation,
    InvalidArgumentError,
    UnavailableError,
)
from strata.shared.json_text import PACKED_JSON_DEPTH, JsonTextError, parse_json
from strata.shared.redaction import Redactor
from strata.tool_execution.custom.agent_memory import AgentBlocks, AgentMemory
from strata.tool_execution.custom.secrets import SecretBox
from strata.tool_execution.domain.hosts import NetworkPolicy
from strata.tool_execution.domain.packages import Packages, PackagesError
from strata.tool_execution.domain.registry import Runnable, not_built
from strata.tool_execution.domain.sandbox import (
    FITTING,
    Isolation,
    Limits,
    Run,
    RunResult,
    RunStatus,
    Sandbox,
)
from strata.tool_execution.domain.tools import (
    Call,
    Caller,
    Effect,
    Output,
    Tool,
    ToolError,
    ToolType,
)
from strata.tool_execution.schema import derive

_MAIN = "_strata_main"
_GIVEN = "_strata_given"
_MAX_MESSAGE = 2_000
# Time that a call waits for packages, which are seldom built only then.
_PACKAGES_S = 40.0
# What of the time of a call is kept for the answer.
_ANSWER_S = 0.5
# The code ran, and was stopped before its end.
_STOPPED = frozenset({
    RunStatus.TIMEOUT, RunStatus.CPU, RunStatus.MEMORY, RunStatus.PROCESSES, RunStatus.OUTPUT,
    RunStatus.KILLED,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run gave, and what kept it from the machine.

    Attributes:
        isolation: None for a tool that runs in an MCP server.
        blocks: New texts of memory blocks by label, of a tool that takes ``agent_state``.
    """

    output: Output
    isolation: Isolation | None = None
    blocks: Mapping[str, str] = field(default_factory=dict)


class SandboxRunner:
    """Runs one function of a tool's source.

    Args:
        sandbox: Where it runs; None if this server has none.
        secrets: Opens the secrets that the tool asks for.
        limits: Most that a call may take.
        packages: Provides the packages of tools; None if this server does not.
        network: What tools may reach.
    """

    def __init__(
        self,
        sandbox: Sandbox | None,
        secrets: SecretBox,
        limits: Limits | None = None,
        packages: Packages | None = None,
        network: NetworkPolicy | None = None,
    ) -> None:
        self._network = network or NetworkPolicy()
        self._packages = packages
        self._sandbox = sandbox
        self._secrets = secrets
        self._limits = limits or Limits()

    @property
    def is_there(self) -> bool:
        """Whether this server can run custom tools at all."""
        return self._sandbox is not None

    @property
    def isolation(self) -> str:
        """What keeps calls from the machine; empty without a sandbox."""
        return self._sandbox.isolation.label if self._sandbox is not None else ""

    async def prepare(self, tool: Tool) -> None:
        """Has the packages of a tool built, so that its calls find them, and checks its hosts.

        Raises:
            InvalidArgumentError: They cannot be had; names ``pip_requirements`` or
                ``allowed_hosts``.
            UnavailableError: They cannot be had now.
            UnimplementedError: NOT_BUILT; this server has no packages, or no network for tools.
        """
        self._check_hosts(tool.own.allowed_hosts if tool.own is not None else ())
        requirements = tool.own.pip_requirements if tool.own is not None else ()
        if not requirements:
            return
        if self._packages is None:
            raise not_built(
                "pip_requirements",
                "Packages for tools are switched off on this server: a tool can use the standard"
                " library only. Take pip_requirements out.",
            )
        try:
            await self._packages.folder(requirements)
        except PackagesError as error:
            if error.temporary:
                raise UnavailableError(str(error)) from error
            raise InvalidArgumentError(
                f"The packages of the tool cannot be had: {error}",
                violations=[FieldViolation("pip_requirements", str(error))],
            ) from error

    async def run(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        sealed: Mapping[str, bytes],
        state: AgentBlocks | None = None,
    ) -> Ran:
        """Runs a tool with valid arguments.

        Args:
            tool: A custom tool.
            arguments: By name.
            sealed: The stored secrets of the project, by name; those that it asks for are used.
            state: The agent's memory, for a tool that takes ``agent_state``. It changes nothing
                there: what it wants changed is in the answer.

        Raises:
            ToolError: It failed, in words for the model; no secret is in them.
            UnavailableError: The sandbox is not running.
        """
        if self._sandbox is None or tool.own is None:
            raise ToolError(f"{tool.name} cannot be run: this server has no sandbox.")
        hosts = self._hosts(tool)
        environment = self._environment(tool, sealed)
        given = dict(arguments)
        if state is not None:
            given[_GIVEN] = state.as_given()
        result = await self._sandbox.run(
            Run(
                source=_with_fitting(tool.own.source_code, tool.own.function, state is not None),
                function=_MAIN,
                arguments_json=json.dumps(given, ensure_ascii=False),
                environment=environment,
                hosts=hosts,
                packages=await self._folder(tool),
                limits=self._limits,
            )
        )
        redactor = Redactor(environment)
        output = _output(tool, result, redactor)
        if state is None:
            return Ran(output, result.isolation)
        # Whatever a tool makes of its process, this is all that is taken from it.
        said = output.value if isinstance(output.value, Mapping) else {}
        blocks = state.checked(tool.name, said.get("blocks", {}))
        if blocks and tool.effect is Effect.READ_ONLY:
            raise ToolError(
                f"{tool.name} was run, but nothing of what it changed in memory was stored: it is"
                " declared read-only."
            )
        return Ran(replace(output, value=said.get("value")), result.isolation, blocks)

    def _check_hosts(self, hosts: Sequence[str]) -> None:
        if hosts and not self._network.allowed:
            raise not_built(
                "allowed_hosts",
                "Network access for tools is switched off on this server. Take allowed_hosts out.",
            )
        refused = self._network.refused(hosts)
        if refused:
            said = f"names {refused[0]}, which this server does not let tools reach"
            raise InvalidArgumentError(
                f"The tool cannot have this network access: allowed_hosts {said}.",
                violations=[FieldViolation("allowed_hosts", said)],
            )

    def _hosts(self, tool: Tool) -> tuple[str, ...]:
        """Returns the hosts of a call; the operator may think otherwise than at its storing."""
        hosts = tool.own.allowed_hosts if tool.own is not None else ()
        if hosts and not self._network.allowed:
            said = "network access for tools is switched off on this server"
        elif refused := self._network.refused(hosts):
            said = f"this server does not let tools reach {', '.join(refused)}"
        else:
            return hosts
        raise ToolError(f"{tool.name} cannot be run: {said}.")

    async def _folder(self, tool: Tool) -> str | None:
        requirements = tool.own.pip_requirements if tool.own is not None else ()
        if not requirements:
            return None
        if self._packages is None:
            raise ToolError(
                f"{tool.name} cannot be run: it needs packages, and they are switched off on this"
                " server."
            )
        left = current().remaining()
        seconds = _PACKAGES_S if left is None else max(0.0, min(_PACKAGES_S, left - _ANSWER_S))
        try:
            async with asyncio.timeout(seconds):
                return await self._packages.folder(requirements)
        except TimeoutError:
            said = "they are still being fetched. Try again later."
        except PackagesError as error:
            said = str(error)
        raise ToolError(f"{tool.name} cannot be run without its packages: {said}")

    def _environment(self, tool: Tool, sealed: Mapping[str, bytes]) -> dict[str, str]:
        own = tool.own
        wanted = own.secret_names if own is not None else ()
        missing = [name for name in wanted if name not in sealed]
        if missing:
            raise ToolError(
                f"{tool.name} needs the secret {', '.join(missing)}, which is not stored."
                " Somebody with an administrator's key must store it."
            )
        try:
            return {name: self._secrets.open(name, sealed[name]) for name in wanted}
        except (DataLossError, FailedPreconditionError) as error:
            raise ToolError(f"{tool.name} cannot be run: {error.message}") from None


class McpRunner(Protocol):
    """Runs tools of MCP servers."""

    async def run(self, tool: Tool, arguments: Mapping[str, Any]) -> Output:
        """Runs a tool with valid arguments.

        Raises:
            ToolError: It failed or may not be run, in words for the model.
        """
        ...

    def look_after(self, server_ids: Collection[str], away: Collection[str]) -> None:
        """Opens sessions with servers in the background and reads their tools."""
        ...


class OwnTools:
    """The project's own tools among the calls of one reply; an executor of the engine.

    Args:
        runnable: The tools and their secrets.
        runner: Runs custom ones.
        mcp: Runs those of MCP servers.
        memory: For those that take ``agent_state``.
    """

    def __init__(
        self, runnable: Runnable, runner: SandboxRunner, mcp: McpRunner, memory: AgentMemory
    ) -> None:
        self._runnable = runnable
        self._runner = runner
        self._mcp = mcp
        self._memory = memory

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The tools by name."""
        return self._runnable.tools

    @property
    def names(self) -> Collection[str]:
        """The tools that it runs."""
        return self._runnable.tools.keys()

    async def run(self, call: Call, arguments: dict[str, Any], caller: Caller) -> Output:
        """Runs one call with valid arguments."""
        tool = self._runnable.tools[call.name]
        if tool.type is ToolType.MCP:
            return await self._mcp.run(tool, arguments)
        if tool.type is not ToolType.CUSTOM:
            raise ToolError(f"{tool.name} is run by the client, not here.")
        if not takes_agent_state(tool):
            return (await self._runner.run(tool, arguments, self._runnable.sealed)).output
        state = await self._memory.read(caller.agent_id)
        ran = await self._runner.run(tool, arguments, self._runnable.sealed, state)
        # What it wrote may be what strangers told it, or told the model.
        written = (*caller.taint, *(("web",) if tool.reads_web else ()))
        edits = await self._memory.store(call, caller, state, ran.blocks, written)
        return replace(ran.output, memory_edits=edits, taint=state.taint)


def takes_agent_state(tool: Tool) -> bool:
    """Whether a tool is given the memory of the agent that calls it."""
    own = tool.own
    return own is not None and derive.takes_agent_state(own.source_code, own.function)


@cache
def _behind(module: str) -> str:
    return files("strata.tool_execution.custom").joinpath(f"{module}.py").read_text("utf-8")


def _with_fitting(source: str, function: str, stateful: bool) -> str:
    """The source, and behind it what calls its function: its own lines keep their numbers."""
    text = f"{source}\n\nfrom {FITTING} import _strata_call\n\n"
    if not stateful:
        return (
            f"{text}def {_MAIN}(**_strata_arguments):\n"
            f"    return _strata_call({function}, _strata_arguments)\n"
        )
    return (
        f"{text}{_behind('agent_state')}\n\n"
        # For annotations, where the source gives the name no meaning of its own.
        f"globals().setdefault('AgentState', _StrataAgentState)\n\n"
        f"def {_MAIN}({_GIVEN}, **_strata_arguments):\n"
        f"    return _strata_stateful(\n"
        f"        lambda _strata_state: _strata_call(\n"
        f"            {function}, {{**_strata_arguments, 'agent_state': _strata_state}}\n"
        f"        ),\n"
        f"        {_GIVEN},\n"
        f"    )\n"
    )


def _output(tool: Tool, result: RunResult, redactor: Redactor) -> Output:
    failed = f"Error executing function {tool.name}:"
    if result.status is RunStatus.OK:
        try:
            value = parse_json(result.value_json or "null", max_depth=PACKED_JSON_DEPTH)
        except JsonTextError:
            raise ToolError(f"{failed} it gave no JSON.", end=RunStatus.BAD_RESULT) from None
        return Output(redactor.value(value))
    failure = result.failure
    if result.status is RunStatus.TOOL_ERROR and failure is not None:
        # The words are the tool's own, and no longer than the model can use.
        words = redactor.text(f"{failure.type}: {failure.message}")
    else:
        words = redactor.text(result.detail) or _ENDS.get(result.status, "it did not end well.")
    text = f"{failed} {words[:_MAX_MESSAGE]}"
    if result.status not in _STOPPED:
        raise ToolError(text, end=result.status)
    # Without a network there is nothing outside of its sandbox that it could change.
    acts = tool.own is not None and tool.own.allowed_hosts and tool.effect is not Effect.READ_ONLY
    also = (
        "It ran until then and can reach the network: whether it had its effect is unknown. Find"
        " out before you call it again."
        if acts
        else "It ran until then, and changed nothing outside of its sandbox."
    )
    raise ToolError(f"{text} {also}", unknown=bool(acts), end=result.status)


_ENDS = {
    RunStatus.TIMEOUT: "it took too long and was stopped.",
    RunStatus.CPU: "it used too much processor time and was stopped.",
    RunStatus.MEMORY: "it used too much memory and was stopped.",
    RunStatus.PROCESSES: "it started too many processes and was stopped.",
    RunStatus.OUTPUT: "it printed too much and was stopped.",
    RunStatus.RESULT_TOO_LARGE: "what it returned is too large.",
    RunStatus.BAD_RESULT: "what it returned has no form in JSON.",
    RunStatus.KILLED: "it was killed.",
    RunStatus.REFUSED: "this server cannot isolate it well enough, so it was not run.",
}
