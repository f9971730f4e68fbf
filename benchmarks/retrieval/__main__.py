"""`python -m benchmarks.retrieval [PATH...]`: see docs/benchmarks/retrieval.md."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

from benchmarks.retrieval import short_chats
from benchmarks.retrieval.datasets import HALVES, Chat, halves, load
from benchmarks.retrieval.floor import FEW, FloorEffect, measure, relevance_sets
from benchmarks.retrieval.methods import HYBRID, METHODS, RERANKED, TOOL, Seconds, answer_questions
from benchmarks.retrieval.report import NAME, Result, print_figures
from benchmarks.retrieval.service import Recall, open_recall

BEAM = "BEAM"
FLOOR = "floor"
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Selection:
    """What a run measures.

    Attributes:
        sets: The chats by data set.
        methods: The methods, in the order of the report.
        floor: Whether the floor is measured as well.
    """

    sets: Mapping[str, Sequence[Chat]]
    methods: Sequence[str]
    floor: bool


def main() -> int:
    """Runs the benchmark; returns the exit code."""
    options = _options()
    try:
        selection = select(
            read_sets(options.paths), options.only or (), options.half, options.reranker is not None
        )
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    with _folder(options.data) as folder:
        result = asyncio.run(_run(folder, selection, options.reranker))
    print_figures(result)
    if options.json is not None:
        result.save(options.json)
    if options.out is not None:
        result.write(options.out)
    return 0


def read_sets(paths: Sequence[Path]) -> dict[str, list[Chat]]:
    """Returns the shipped chats and those at the paths, by data set."""
    sets = {
        short_chats.NAME: list(short_chats.short_chats()),
        short_chats.DIALOGUES: list(short_chats.dialogues()),
    }
    for path in paths:
        name = BEAM if path.is_dir() else path.resolve().name.partition(".")[0]
        sets.setdefault(name, []).extend(load(path))
    return sets


def select(
    sets: Mapping[str, Sequence[Chat]], only: Sequence[str], half: str | None, reranker: bool
) -> Selection:
    """Returns what a run measures.

    Args:
        only: Names of data sets and methods, or "floor"; if none is a data set, all are measured,
            and likewise the methods. Without any, the floor is measured as well.
        half: "calibration" or "test"; None for both.

    Raises:
        ValueError: A name is unknown.
    """
    methods = [METHODS[0], *([RERANKED] if reranker else []), *METHODS[1:], TOOL]
    if unknown := {*only} - {*sets, *methods, FLOOR}:
        raise ValueError(
            f"unknown: {', '.join(sorted(unknown))}; there are"
            f" {', '.join([*sets, *methods, FLOOR])}"
        )
    chosen = {
        name: [chat for chat in chats if half in (None, chat.half)]
        for name, chats in sets.items()
        if name in only or not {*only} & {*sets}
    }
    if {*only} == {FLOOR}:
        return Selection(chosen, [], floor=True)
    picked = [name for name in methods if name in only or not {*only} & {*methods}]
    return Selection(chosen, picked, floor=not only or FLOOR in only)


async def _run(folder: Path, selection: Selection, reranker: Path | None) -> Result:
    async with open_recall(folder, reranker) as recall:
        await recall.fill([chat for chats in selection.sets.values() for chat in chats])
        result = Result([*selection.methods])
        seconds = Seconds()
        for name, chats in selection.sets.items():
            for chat in chats:
                result.answers += await answer_questions(
                    recall, name, chat, selection.methods, seconds
                )
        if selection.floor:
            result.floors = await _floors(recall, selection.sets)
        _add_times(result, seconds)
        await _add_facts(result, recall)
        return result


async def _floors(
    recall: Recall, sets: Mapping[str, Sequence[Chat]]
) -> dict[str, dict[str, FloorEffect]]:
    shipped = relevance_sets()
    await recall.fill([chat for half in shipped.values() for chat in (half.texts, half.few)])
    effects = {}
    for name, chats in sets.items():
        # The shipped chats cover so many subjects that some queries would not be off topic.
        off_topic = name not in (short_chats.NAME, short_chats.DIALOGUES)
        effects[name] = {
            half: await measure(recall, part, shipped[half].off_topic if off_topic else {})
            for half, part in halves(chats).items()
        }
    count = len(shipped["test"].texts.turns)
    for title, few in ((f"{count} sentences", False), (f"{FEW} sentences", True)):
        effects[title] = {
            half: await measure(
                recall, [material.few if few else material.texts], material.off_topic
            )
            for half, material in shipped.items()
        }
    return effects


def _add_times(result: Result, seconds: Seconds) -> None:
    for name, durations in (
        ("hybrid, ten hits", seconds.first),
        ("the same with the query's vector known", seconds.again),
        ("the same, reranked", seconds.reranked),
    ):
        if durations:
            result.seconds[name] = _percentiles(durations)


async def _add_facts(result: Result, recall: Recall) -> None:
    sizes = recall.sizes()
    result.facts = {
        "messages": f"{len(recall.keys):,} of {len(recall.agents)} agents in one project",
        "vector index on disk": f"{sizes['vectors'] / _MIB:.0f} MiB",
        "PostgreSQL on disk, its log included": f"{sizes['postgres'] / _MIB:.0f} MiB",
        "load of the machine in the last minute": f"{os.getloadavg()[0]:.1f},"
        f" with {os.cpu_count()} processors",
    }
    if recall.reranked is not None:
        result.facts["reranker"] = recall.reranked.description()


def _percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    cuts = quantiles(seconds, n=20, method="inclusive") if len(seconds) > 1 else [*seconds] * 19
    return cuts[9], cuts[18]


@contextmanager
def _folder(path: Path | None) -> Iterator[Path]:
    if path is not None:
        path.mkdir(parents=True, exist_ok=True)
        yield path.resolve()
        return
    made = Path(tempfile.mkdtemp(prefix="strata-retrieval-"))
    made.chmod(0o711)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.retrieval",
        description="Measures the retrieval quality of search on chats with questions.",
        epilog="Example: python -m benchmarks.retrieval --half calibration --data /tmp/retrieval"
        f" --only '{short_chats.NAME}' --only {HYBRID}",
    )
    parser.add_argument(
        "paths",
        nargs="*",
        type=Path,
        metavar="PATH",
        help=(
            "data to measure in addition to the short chats of this benchmark: a BEAM chat or a"
            " folder of them, or a JSON file of LoCoMo, LongMemEval or facts"
        ),
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        help=f"a data set, a method ({', '.join(METHODS)}, {TOOL}) or {FLOOR}; can be repeated",
    )
    parser.add_argument("--half", choices=HALVES, help="only the chats of this half")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help=f"write the report {NAME}.md to this folder"
    )
    parser.add_argument("--json", type=Path, help="write all figures and ranks to this file")
    parser.add_argument(
        "--data", type=Path, help="folder to keep stored and indexed data in, for the next run"
    )
    parser.add_argument(
        "--reranker",
        type=Path,
        metavar="FOLDER",
        help="a cross-encoder (model.onnx, vocab.txt) to measure as well",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
