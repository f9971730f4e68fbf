"""`python -m benchmarks.retrieval PATH...`: see docs/benchmarks/retrieval.md."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles

from benchmarks.retrieval.baselines import Bm25, substring
from benchmarks.retrieval.datasets import FACTUAL, Chat, halves, load
from benchmarks.retrieval.floor import FEW, FloorEffect, measure, relevance_sets
from benchmarks.retrieval.report import Result
from benchmarks.retrieval.scoring import ALL, DEPTH, Score, by_kind, score
from benchmarks.retrieval.service import Recall, open_recall
from strata.api.recall.v1 import message_service_pb2 as pb

METHODS = ("hybrid", "dense", "full text", "BM25", "substring")
RERANKED = "reranked"
_MIB = 1024 * 1024


def main() -> int:
    """Runs the benchmark; returns the exit code."""
    options = _options()
    sets = {_name(path): list(load(path)) for path in options.paths}
    merged: dict[str, list[Chat]] = defaultdict(list)
    for name, chats in sets.items():
        merged["BEAM" if _is_beam(name, options.paths) else name] += chats
    with _folder(options.data) as folder:
        result = asyncio.run(_run(folder, merged, options.reranker))
    methods = methods_of(options.reranker)
    for name, by_method in result.scores.items():
        print(f"{name:24s} recall@5  recall@10  any@10  all@10  MRR")
        for method in methods:
            scores = by_method[method][ALL]
            print(
                f"  {method:20s}  {scores.recall_5:9.3f} {scores.recall_10:10.3f}"
                f" {scores.any_10:7.3f} {scores.all_10:7.3f} {scores.mrr:6.3f}"
            )
    for name, effects in result.floors.items():
        for half, effect in effects.items():
            print(
                f"floor, {name}, {half}: {sum(effect.lost.values())} of"
                f" {sum(effect.answered.values())} lost, nothing for"
                f" {sum(effect.nothing.values())} of {sum(effect.asked.values())} off topic"
            )
    result.write(options.out, methods, FACTUAL)
    if options.json is not None:
        result.save(options.json)
    return 0


def methods_of(reranker: Path | None) -> tuple[str, ...]:
    """Returns the compared methods, with the reranked one if there is a reranker."""
    return METHODS if reranker is None else (METHODS[0], RERANKED, *METHODS[1:])


async def _run(folder: Path, sets: dict[str, list[Chat]], reranker: Path | None) -> Result:
    result = Result()
    methods = methods_of(reranker)
    async with open_recall(folder, reranker) as recall:
        shipped = relevance_sets()
        short = [chat for half in shipped.values() for chat in (half.texts, half.few)]
        await recall.fill([*(chat for chats in sets.values() for chat in chats), *short])
        first: list[float] = []
        again: list[float] = []
        reranked: list[float] = []
        for name, chats in sets.items():
            scores: dict[str, dict[str, list[Score]]] = {
                method: defaultdict(list) for method in methods
            }
            for chat in chats:
                await _ask(recall, chat, scores, first, again, reranked)
            result.scores[name] = {method: by_kind(scores[method], FACTUAL) for method in methods}
            result.floors[name] = {
                half: await measure(recall, part, shipped[half].off_topic)
                for half, part in halves(chats).items()
            }
        count = len(shipped["test"].texts.turns)
        full: dict[str, FloorEffect] = {}
        small: dict[str, FloorEffect] = {}
        for half, material in shipped.items():
            full[half] = await measure(recall, [material.texts], material.off_topic)
            small[half] = await measure(recall, [material.few], material.off_topic)
        result.floors |= {f"{count} short texts": full, f"{FEW} short texts": small}
        if first:
            result.seconds = {
                "hybrid, ten hits": _percentiles(first),
                "the same with the query's vector known": _percentiles(again),
            }
        if reranked:
            result.seconds["the same, reranked"] = _percentiles(reranked)
        turns = sum(len(chat.turns) for chats in [*sets.values(), short] for chat in chats)
        sizes = recall.sizes()
        result.facts = {
            "messages": f"{turns:,} of {len(recall.agents)} agents in one project",
            "vector index on disk": f"{sizes['vectors'] / _MIB:.0f} MiB",
            "PostgreSQL on disk, its log included": f"{sizes['postgres'] / _MIB:.0f} MiB",
            "load of the machine in the last minute": f"{os.getloadavg()[0]:.1f},"
            f" with {os.cpu_count()} processors",
        }
        if recall.reranked is not None:
            result.facts["reranker"] = recall.reranked.description()
    return result


async def _ask(
    recall: Recall,
    chat: Chat,
    scores: dict[str, dict[str, list[Score]]],
    first: list[float],
    again: list[float],
    reranked: list[float],
) -> None:
    texts = [turn.text for turn in chat.turns]
    bm25 = Bm25(texts)
    for question in chat.questions:
        hybrid, seconds = await recall.search(chat, question, pb.SEARCH_MODE_HYBRID, DEPTH)
        first.append(seconds)
        _, seconds = await recall.search(chat, question, pb.SEARCH_MODE_HYBRID, DEPTH)
        again.append(seconds)
        full_text, _ = await recall.search(chat, question, pb.SEARCH_MODE_FULL_TEXT, DEPTH)
        results: dict[str, Sequence[str]] = {
            "hybrid": hybrid,
            "dense": await recall.by_meaning(chat, question, DEPTH),
            "full text": full_text,
            "BM25": [chat.turns[place].key for place in bm25.search(question.text, DEPTH)],
            "substring": [
                chat.turns[place].key for place in substring(texts, question.text, DEPTH)
            ],
        }
        if recall.reranked is not None:
            # The query's vector is cached by now, so that only the reranker is measured.
            results[RERANKED], seconds = await recall.rerank(chat, question, DEPTH)
            reranked.append(seconds)
        for method, keys in results.items():
            scores[method][question.kind].append(score(keys, question.evidence))


def _percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    cuts = quantiles(seconds, n=20, method="inclusive") if len(seconds) > 1 else [*seconds] * 19
    return cuts[9], cuts[18]


def _name(path: Path) -> str:
    return path.resolve().name.partition(".")[0]


def _is_beam(name: str, paths: Sequence[Path]) -> bool:
    return any(_name(path) == name and path.is_dir() for path in paths)


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
        description="Measures the retrieval quality of search on public chats.",
    )
    parser.add_argument(
        "paths",
        nargs="*",
        type=Path,
        metavar="PATH",
        help=(
            "data to measure in addition to the short texts of this benchmark: a BEAM chat or a"
            " folder of them, or a JSON file of LoCoMo, LongMemEval or facts"
        ),
    )
    parser.add_argument(
        "--out", type=Path, default=Path("docs/benchmarks"), help="folder for the report"
    )
    parser.add_argument(
        "--data", type=Path, help="folder to keep stored and indexed data in, for the next run"
    )
    parser.add_argument(
        "--reranker",
        type=Path,
        metavar="FOLDER",
        help="a cross-encoder (model.onnx, vocab.txt) to measure as well",
    )
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
