"""`python -m benchmarks.retrieval.compare OLD NEW`: compares two files written with `--json`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.retrieval.datasets import FACTUAL
from benchmarks.retrieval.scoring import WITH_INTERVAL, bootstrap

Scores = Mapping[tuple[str, ...], Mapping[str, Any]]


def main() -> int:
    """Prints the differences; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.retrieval.compare",
        description="Compares two runs of the retrieval benchmark, question by question.",
    )
    parser.add_argument("old", type=Path, metavar="OLD")
    parser.add_argument("new", type=Path, metavar="NEW")
    options = parser.parse_args()
    for line in differences(read(options.old), read(options.new)):
        print(line)
    return 0


def differences(old: Scores, new: Scores) -> list[str]:
    """Returns a line for each set, half, method and main metric that both runs have.

    The interval belongs to the mean difference per question.
    """
    both = [key for key in new if key in old]
    lines = [f"{len(both)} questions in both runs, {len(new) - len(both)} only in the new one"]
    by_line: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for key in both:
        if key[0] == "BEAM" and new[key]["kind"] not in FACTUAL:
            continue
        for method, metrics in new[key]["scores"].items():
            before = old[key]["scores"].get(method, {})
            for metric in WITH_INTERVAL:
                if metric in metrics and metric in before:
                    line = (key[0], new[key]["half"], method, metric)
                    by_line.setdefault(line, []).append((before[metric], metrics[metric]))
    for names, pairs in sorted(by_line.items()):
        low, high = bootstrap([after - before for before, after in pairs])
        means = [fmean(values) for values in zip(*pairs, strict=True)]
        lines.append(
            f"{' | '.join(names)}: {means[0]:.3f} -> {means[1]:.3f},"
            f" {means[1] - means[0]:+.3f} ({low:+.3f} to {high:+.3f})"
        )
    return lines


def read(path: Path) -> Scores:
    """Returns the questions of a run by set, chat and text."""
    entries = json.loads(path.read_text(encoding="utf-8"))["answers"]
    return {(entry["set"], entry["chat"], entry["question"]): entry for entry in entries}


if __name__ == "__main__":
    sys.exit(main())
