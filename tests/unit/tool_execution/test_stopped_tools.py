"""Errors of custom tools that the sandbox stopped, with and without network access."""

from __future__ import annotations

import pytest

from strata.shared.messages import ToolStatus
from strata.shared.sandbox import Failure, Isolation, RunResult, RunStatus, SandboxRun
from strata.tool_execution.custom.executor import SandboxRunner
from strata.tool_execution.custom.secrets import SecretBox
from strata.tool_execution.domain.network_policy import NetworkPolicy
from strata.tool_execution.domain.tools import Effect, OwnDefinition, Tool, ToolError, ToolType

STOPPED = {
    RunStatus.TIMEOUT,
    RunStatus.CPU,
    RunStatus.MEMORY,
    RunStatus.PROCESSES,
    RunStatus.OUTPUT,
    RunStatus.KILLED,
}


class Ending:
    """A sandbox in which every call ends in one way."""

    isolation = Isolation.NAMESPACES

    def __init__(self, status: RunStatus) -> None:
        self._status = status

    async def run(self, run: SandboxRun) -> RunResult:
        failure = Failure("ValueError", "no") if self._status is RunStatus.TOOL_ERROR else None
        return RunResult(self._status, detail="It met a limit.", failure=failure)

    async def close(self) -> None:
        raise AssertionError


@pytest.mark.parametrize("status", sorted(set(RunStatus) - {RunStatus.OK}))
@pytest.mark.parametrize("hosts", [(), ("api.example.com",)])
@pytest.mark.parametrize("effect", list(Effect))
async def test_the_outcome_of_a_stopped_tool_with_network_access_is_unknown(
    status: RunStatus, hosts: tuple[str, ...], effect: Effect
) -> None:
    own = OwnDefinition(source_code="def f(): ...", function="f", allowed_hosts=hosts)
    tool = Tool("f", "Does.", ToolType.CUSTOM, {}, effect, own=own)
    runner = SandboxRunner(Ending(status), SecretBox(), network=NetworkPolicy(allowed=True))
    with pytest.raises(ToolError) as raised:
        await runner.run(tool, {}, {})
    acts = status in STOPPED and bool(hosts) and effect is not Effect.READ_ONLY
    assert raised.value.status is (ToolStatus.UNKNOWN if acts else ToolStatus.FAILED)
    assert raised.value.end is status
    if status in STOPPED:
        text = "is unknown" if acts else "changed nothing outside of its sandbox"
        assert text in str(raised.value)
