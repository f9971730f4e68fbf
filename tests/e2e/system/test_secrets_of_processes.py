"""In split mode each process gets only the secrets that it needs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from live import LiveSystem
from strata.api.tool_execution.v1 import tool_service_pb2 as pb

STORING = {"gateway", "agent_loop", "core_memory", "recall", "archival", "tool_execution"}
ALL = STORING | {"tool_runner"}

# Maps each file in the folder of secrets to the services that get its content.
HOLDERS: Mapping[str, set[str]] = {
    "token-signing-key": {"gateway"},
    "key-pepper": {"gateway"},
    "core-memory-worker-key": {"core_memory"},
    "master-key": {"agent_loop"},
    "tool-master-key": {"tool_execution"},
    "api-key": set(),
    "organization-key": set(),
    **{f"postgres-{name}": {name} for name in STORING},
    **{f"postgres-{name}-worker": {name} for name in STORING},
}


def service_of(process: psutil.Process) -> tuple[str, bool]:
    """Returns the service of a process, and whether the process is the service itself.

    Other processes belong to the service that has started them.
    """
    try:
        for place, ancestor in enumerate((process, *process.parents())):
            for word in ancestor.cmdline():
                if word.startswith("strata.") and word.endswith(".main"):
                    return word.split(".")[1], place == 0
    except psutil.NoSuchProcess:
        # A process that ran code of a tool, and has ended.
        pass
    return "", False


def environment_of(process: psutil.Process) -> str:
    try:
        return Path(f"/proc/{process.pid}/environ").read_text(errors="replace")
    except (FileNotFoundError, PermissionError):
        return ""


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.timeout(240)
async def test_each_process_gets_the_secrets_that_it_needs(split_live: LiveSystem) -> None:
    strata = split_live
    system = strata.connect()
    source = 'def idle() -> str:\n    """Returns nothing of interest."""\n    return ""\n'
    await system.tools.RunTool(pb.RunToolRequest(source_code=source))
    processes = strata.tree()[1:]
    seen = {process: environment_of(process) for process in processes}
    services = {process: service_of(process) for process in processes}
    await system.channel.close()
    assert {name for name, itself in services.values() if itself} == ALL
    # Programs that a service starts, such as those that run code of tools, get no secret.
    assert ("tool_runner", False) in services.values()
    secrets = {name: (strata.data / "secrets" / name).read_text() for name in HOLDERS}
    for name, holders in HOLDERS.items():
        # The first line of a PEM text is the same in every key, so the second one is compared.
        lines = secrets[name].splitlines()
        text = lines[1] if lines[0].startswith("-----") else lines[0]
        actual = {services[process] for process, env in seen.items() if text in env}
        assert actual == {(holder, True) for holder in holders}, name
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        key = strata.environment[name]
        actual = {services[process] for process, env in seen.items() if key in env}
        assert actual == {("agent_loop", True)}, name
    for name in ("STRATA_API_KEY", "STRATA_DATABASE_ADMIN_URL"):
        text = strata.environment[name]
        assert [services[process] for process, env in seen.items() if text in env] == []
