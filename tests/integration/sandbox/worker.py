"""Runs a sandbox in a separate process, as another user or restricted like a pod.

Reads one call per line from standard input, writes one result per line. Imports nothing but the
sandbox, so that any Python can run it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from strata.shared.sandbox import Isolation, Limits, SandboxRun
from strata.tool_runner.domain.proxy import Proxies
from strata.tool_runner.sandbox.jail import JailConfig, JailSandbox
from strata.tool_runner.sandbox.program import kernel, seccomp, syscalls


def restrict() -> None:
    """Denies namespaces and mounts, as a restricted pod does."""
    table = {
        "x86_64": {"clone": 56, "unshare": 272, "setns": 308, "mount": 165, "umount2": 166,
                   "pivot_root": 155, "clone3": 435},
        "aarch64": {"clone": 220, "unshare": 97, "setns": 268, "mount": 40, "umount2": 39,
                    "pivot_root": 41, "clone3": 435},
    }[syscalls.machine()]  # fmt: skip
    allow = (0x06, 0, 0, 0x7FFF0000)
    refuse = (0x06, 0, 0, 0x00050001)
    load_number = (0x20, 0, 0, 0)
    program: list[seccomp.Instruction] = [load_number]
    for name, number in table.items():
        if name == "clone":
            rule = [(0x20, 0, 0, 16), (0x45, 0, 1, 0x7E020000), refuse, allow]
        elif name == "clone3":
            rule = [(0x06, 0, 0, 0x00050026)]
        else:
            rule = [refuse]
        program += [(0x15, 0, len(rule), number), *rule]
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    seccomp.load(seccomp.assemble([*program, allow]))


def say(answer: object) -> None:
    """Writes one line to the test."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def proxies(settings: dict[str, Any]) -> Proxies:
    """Returns the proxy with which calls reach servers on loopback, by the configured names."""
    # Imported here because it needs a library that not every Python has.
    sys.path.append(settings["libraries"])
    from strata.shared.web.url_guard import Guard  # noqa: PLC0415
    from strata.tool_runner.egress.proxy import EgressProxy, ProxyLimits  # noqa: PLC0415

    async def resolve(host: str, port: int) -> list[str]:
        if host not in settings["names"]:
            raise OSError("no such host")
        return list(settings["names"][host])

    guard = Guard(resolve, private_networks=["127.0.0.0/8"], ports=settings["ports"])
    limits = ProxyLimits(**settings.get("limits", {}))
    return partial(EgressProxy, admission=guard, limits=limits)


async def serve(settings: dict[str, Any]) -> None:
    """Answers requests until the input ends."""
    environments = settings.get("environments")
    config = JailConfig(
        warm=2,
        interpreter=settings.get("interpreter"),
        environments=Path(environments) if environments else None,
        minimum=Isolation(settings.get("minimum", Isolation.LANDLOCK)),
        proxies=proxies(settings["network"]) if "network" in settings else None,
        ca_file=Path(settings["ca_file"]) if "ca_file" in settings else None,
    )
    sandbox = await JailSandbox.start(config)
    say({"words": sandbox.probe.description(), "level": int(sandbox.isolation)})
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        fields = json.loads(line)
        limits = Limits(**fields.pop("limits", {}))
        if "minimum" in fields:
            fields["minimum"] = Isolation(fields["minimum"])
        if "hosts" in fields:
            fields["hosts"] = tuple(fields["hosts"])
        result = await sandbox.run(SandboxRun(limits=limits, **fields))
        say(dataclasses.asdict(result))
    await sandbox.close()


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    if options.get("restricted"):
        restrict()
    asyncio.run(serve(options))
