"""`python -m benchmarks`: see docs/benchmarks/README.md."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from fnmatch import fnmatch
from pathlib import Path

from benchmarks.bench import QUICK, Bench, Effort, Floors, Model
from benchmarks.calls import archival, conversation_search, gateway_calls
from benchmarks.client import Client
from benchmarks.core_memory import compile_big, compile_unchanged
from benchmarks.fairness import noisy_neighbour, noisy_project, noisy_turns
from benchmarks.indexing import indexing
from benchmarks.load import eight_agents, thirty_agents
from benchmarks.memory_agents import memory_agents
from benchmarks.peers.environment import PeerEnvironment
from benchmarks.peers.suite import peers
from benchmarks.processes import Neighbours, temporary_folder
from benchmarks.report import Report
from benchmarks.starting import idle_memory, measured_start
from benchmarks.system import System
from benchmarks.tools import custom_tools
from benchmarks.turns import long_reply, long_window, plain_turn, tool_turns
from strata.shared.event_loop import loop_factory

Suite = Callable[[Bench], Awaitable[None]]

START = "start"
PEERS = "peers"
SUITES: dict[str, Suite] = {
    "plain_turn": plain_turn,
    PEERS: peers,
    "gateway_calls": gateway_calls,
    "compile_unchanged": compile_unchanged,
    "compile_big": compile_big,
    "tool_turns": tool_turns,
    "long_window": long_window,
    "long_reply": long_reply,
    "archival": archival,
    "conversation_search": conversation_search,
    "indexing": indexing,
    "custom_tools": custom_tools,
    "noisy_neighbour": noisy_neighbour,
    "noisy_turns": noisy_turns,
    "noisy_project": noisy_project,
    "memory_agents": memory_agents,
    "load_8": eight_agents,
    "load_30": thirty_agents,
    "memory": idle_memory,
}


def main() -> int:
    """Runs the chosen suites; returns the exit code."""
    options = _options()
    chosen = chosen_suites(options.only, peers_exist=PeerEnvironment().exists)
    if not chosen:
        print(f"no such suite; choose from {', '.join((START, *SUITES))}", file=sys.stderr)
        return 2
    effort = QUICK if options.quick else Effort()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        report = runner.run(_run(chosen, effort, split=options.split))
    report.print()
    if options.json is not None:
        report.save(options.json)
    return 1 if options.check and report.missed else 0


def chosen_suites(patterns: list[str], *, peers_exist: bool) -> list[str]:
    """Returns the suites to run, in their order.

    Args:
        patterns: Patterns of names; without any, all suites are chosen.
        peers_exist: Whether the peers are installed. Only a pattern has them installed.
    """
    return [
        name
        for name in (START, *SUITES)
        if _is_selected(name, patterns) and (patterns or name != PEERS or peers_exist)
    ]


async def _run(chosen: list[str], effort: Effort, *, split: bool) -> Report:
    report = Report()
    report.machine["shape"] = "one process per service" if split else "one process"
    neighbours = Neighbours()
    with temporary_folder("strata-bench-") as folder:
        async with AsyncExitStack() as stack:
            model = await Model.start(folder, stack)
            _say(START)
            if START in chosen:
                system = await measured_start(folder, model, effort, report, split=split)
            else:
                system = System(folder / "data", model.url, split=split)
                await system.start()
            stack.push_async_callback(system.stop)
            channel = await stack.enter_async_context(system.channel())
            bench = Bench(
                effort,
                report,
                system,
                model,
                Client(channel, system.credentials()),
                await Floors.open(system, model, folder, stack),
            )
            for suite in chosen:
                if suite != START:
                    _say(suite)
                    await SUITES[suite](bench)
            report.machine["cpu_of_others"] = f"{neighbours.share():.0%}"
    return report


def _is_selected(name: str, patterns: list[str]) -> bool:
    return not patterns or any(fnmatch(name, pattern) for pattern in patterns)


def _say(name: str) -> None:
    print(f"... {name}", file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer samples, for a first look")
    parser.add_argument("--split", action="store_true", help="one process per service")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to this file")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME",
        help=f"suite to run (may be repeated, may contain *): {', '.join((START, *SUITES))}",
    )  # fmt: skip
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
