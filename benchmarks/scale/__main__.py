"""`python -m benchmarks.scale`: see docs/benchmarks/scale.md."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

from benchmarks.processes import Neighbours, temporary_folder
from benchmarks.report import Report
from benchmarks.scale import agents, messages, passages
from benchmarks.scale.services import open_services
from strata.shared.event_loop import loop_factory


def main() -> int:
    """Runs the benchmark; returns the exit code."""
    options = _options()
    report = Report()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_run(options, report))
    report.print()
    if options.json is not None:
        report.save(options.json)
    return 1 if options.check and report.missed else 0


async def _run(options: argparse.Namespace, report: Report) -> None:
    neighbours = Neighbours()
    # Separate engines for both parts, so that memory and disk can be attributed.
    if options.passages:
        with temporary_folder("strata-scale-", options.data) as folder:
            async with open_services(folder, os.getpid()) as services:
                await passages.measure(services, report, options.passages, options.searches)
    if options.messages:
        with temporary_folder("strata-scale-", options.data) as folder:
            async with open_services(folder, os.getpid()) as services:
                await messages.measure(
                    services,
                    report,
                    options.messages,
                    options.agents,
                    round(options.agents * options.indexed),
                    options.searches,
                    options.rounds,
                )
    if options.stored_agents:
        with temporary_folder("strata-scale-", options.data) as folder:
            await agents.measure(folder, report, options.stored_agents, options.talking_agents)
    report.machine["cpu_of_others"] = f"{neighbours.share():.0%}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale",
        description="Measures the services with as much data as after years of use.",
    )
    parser.add_argument("--passages", type=int, default=100_000, help="passages; 0 for none")
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages; 0 for none")
    parser.add_argument("--agents", type=int, default=1_000, help="agents with these messages")
    parser.add_argument(
        "--indexed",
        type=float,
        default=0.2,
        metavar="SHARE",
        help="number of agents whose messages are written to the vector index",
    )
    parser.add_argument(
        "--stored-agents", type=int, default=100_000, help="agents stored in one Strata; 0 for none"
    )
    parser.add_argument(
        "--talking-agents", type=int, default=1_000, help="of these, agents that take turns"
    )
    parser.add_argument("--searches", type=int, default=200, help="searches per kind, and turns")
    parser.add_argument(
        "--rounds", type=int, default=1, help="rounds of message searches, each reported"
    )
    parser.add_argument("--data", type=Path, help="folder to work in; must have some GB left")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to this file")
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
