"""`python -m benchmarks.capacity`: see docs/benchmarks/README.md."""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks.bench import Model
from benchmarks.capacity.cluster import open_cluster
from benchmarks.capacity.measuring import (
    Demand,
    Load,
    measure_demand,
    measure_load,
    measure_rpcs,
)
from benchmarks.capacity.report import NAME, CapacityReport
from benchmarks.processes import Neighbours, temporary_folder
from strata.shared.event_loop import loop_factory

_REPLICAS = (1, 2, 4)
_CLIENTS = (1, 8, 30)
_DEMAND_CLIENTS = 8


def main() -> int:
    """Runs the benchmark; returns the exit code."""
    options = _options()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        report = runner.run(_run(options.seconds))
    document = report.document()
    if options.out is None:
        print(document)
    else:
        (options.out / f"{NAME}.md").write_text(document)
    if options.json is not None:
        report.save(options.json)
    return 0


async def _run(seconds: float) -> CapacityReport:
    neighbours = Neighbours()
    demand: Demand | None = None
    loads: list[Load] = []
    with temporary_folder("strata-capacity-") as folder:
        async with AsyncExitStack() as stack:
            model = await Model.start(folder, stack)
            for replicas in _REPLICAS:
                _say(f"{replicas} replicas")
                async with open_cluster(
                    folder / f"replicas-{replicas}", model.url, replicas
                ) as cluster:
                    if demand is None:
                        demand = await measure_demand(cluster, model, _DEMAND_CLIENTS, seconds)
                        await cluster.settle()
                    for clients in _CLIENTS:
                        loads.append(await measure_load(cluster, clients, seconds))
                        await cluster.settle()
            # Separately, because traces take processor time.
            _say("traces")
            rpcs = await measure_rpcs(folder / "traced", model)
    assert demand is not None
    return CapacityReport(demand, rpcs, loads, neighbours.share())


def _say(text: str) -> None:
    print(f"... {text}", file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capacity", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="seconds of each load (default: 10)"
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write the document there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
