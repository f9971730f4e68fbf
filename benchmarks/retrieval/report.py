"""The report of the retrieval benchmark: a document with plots."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.retrieval.datasets import BEAM_CALIBRATION
from benchmarks.retrieval.floor import FloorEffect
from benchmarks.retrieval.plots import bars
from benchmarks.retrieval.scoring import ALL, Score, interval

NAME = "retrieval"


@dataclass
class Result:
    """The results of one run.

    Attributes:
        scores: Scores by data set, then method, then type of question.
        seconds: Latency through the service: p50 and p95, by name.
        facts: Sizes and counts as text, by name.
        floors: The effect of the floor, by data set, then "calibration" or "test".
    """

    scores: dict[str, dict[str, dict[str, Score]]] = field(default_factory=dict)
    seconds: dict[str, tuple[float, float]] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    floors: dict[str, dict[str, FloorEffect]] = field(default_factory=dict)

    def write(self, folder: Path, methods: Sequence[str], headline: Sequence[str]) -> None:
        """Writes the document and its plots."""
        folder.mkdir(parents=True, exist_ok=True)
        parts = [_HEAD.format(date=datetime.now(UTC).strftime("%Y-%m-%d"))]
        for data_set, by_method in self.scores.items():
            parts += self._data_set(folder, data_set, by_method, methods, headline)
        if self.floors:
            parts += _floors(self.floors)
        parts.append("## Time and space\n")
        parts.append("| through the service | p50 ms | p95 ms |\n|---|---|---|")
        parts += [
            f"| {name} | {p50 * 1000:.1f} | {p95 * 1000:.1f} |"
            for name, (p50, p95) in self.seconds.items()
        ]
        parts.append("")
        parts += [f"- {name}: {text}" for name, text in self.facts.items()]
        (folder / f"{NAME}.md").write_text("\n".join(parts) + "\n", encoding="utf-8")

    def save(self, file: Path) -> None:
        """Writes the figures as JSON."""
        plain = {
            data_set: {
                method: {kind: asdict(score) for kind, score in kinds.items()}
                for method, kinds in by_method.items()
            }
            for data_set, by_method in self.scores.items()
        }
        floors = {
            data_set: {half: effect.counts() for half, effect in halves.items()}
            for data_set, halves in self.floors.items()
        }
        data = {"scores": plain, "seconds": self.seconds, "facts": self.facts, "floors": floors}
        file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")

    def _data_set(
        self,
        folder: Path,
        data_set: str,
        by_method: Mapping[str, Mapping[str, Score]],
        methods: Sequence[str],
        headline: Sequence[str],
    ) -> list[str]:
        parts = [f"## {data_set}\n", _TABLE]
        for method in methods:
            total = by_method[method][ALL]
            parts.append(
                f"| {method} | {total.recall_5:.3f} | {total.recall_10:.3f} |"
                f" {total.any_10:.3f} | {total.all_10:.3f} | {total.mrr:.3f} |"
            )
        kinds = [kind for kind in by_method[methods[0]] if kind != ALL]
        chosen = [kind for kind in kinds if kind in headline]
        over = by_method[methods[0]][ALL].questions
        which = ", ".join(kind.replace("_", " ") for kind in chosen) if chosen else "every type"
        parts.append(f"\n{over} questions: {which}.\n")
        for title, read in (("recall@10", "recall_10"), ("all@10", "all_10")):
            file = f"{NAME}-{data_set.lower()}-{title.partition('@')[0]}.svg"
            groups = {
                kind: {method: getattr(by_method[method][kind], read) for method in methods}
                for kind in [ALL, *kinds]
            }
            (folder / file).write_text(bars(f"{data_set}: {title}", groups, methods), "utf-8")
            parts.append(f"![{title} by type of question]({file})\n")
        parts.append("| type | questions | " + " | ".join(methods) + " |")
        parts.append("|---|---|" + "---|" * len(methods))
        for kind in kinds:
            cells = " | ".join(f"{by_method[method][kind].recall_10:.3f}" for method in methods)
            number = by_method[methods[0]][kind].questions
            parts.append(f"| {kind.replace('_', ' ')} | {number} | {cells} |")
        parts.append("\nThe table is recall@10.\n")
        return parts


def _floors(effects: Mapping[str, Mapping[str, FloorEffect]]) -> list[str]:
    """Returns the section about the floor."""
    parts = ["## The floor", "", _FLOOR.format(chats=", ".join(sorted(BEAM_CALIBRATION)))]
    for title, parts_of, whole_of, without_of in (
        ("Lost questions", "lost", "answered", None),
        ("Off-topic queries that return nothing", "nothing", "asked", "nothing_without"),
    ):
        parts += [f"### {title}", ""]
        last = [] if without_of is None else ["nothing without a floor"]
        columns = ["set", "half", "kind", "queries", title.split()[0].lower(), "share", *last]
        columns[4:6] = ["lost" if without_of is None else "nothing", "share (95 % interval)"]
        parts += [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        for name, halves in effects.items():
            for half, effect in halves.items():
                named = f"{half} (chosen on it)" if half == "calibration" else half
                wholes: Mapping[str, int] = getattr(effect, whole_of)
                some: Mapping[str, int] = getattr(effect, parts_of)
                totals = {ALL: sum(wholes.values())} if len(wholes) > 1 else {}
                for kind, whole in {**totals, **wholes}.items():
                    part = sum(some.values()) if kind == ALL else some[kind]
                    cells = [name, named, kind.replace("_", " "), str(whole), str(part)]
                    cells.append(_share(part, whole))
                    if without_of is not None:
                        nothing: Mapping[str, int] = getattr(effect, without_of)
                        count = sum(nothing.values()) if kind == ALL else nothing[kind]
                        cells.append(str(count))
                    parts.append(f"| {' | '.join(cells)} |")
        parts.append("")
    return parts


def _share(part: int, whole: int) -> str:
    if not whole:
        return "-"
    low, high = interval(part, whole)
    return f"{part / whole:.3f} ({low:.3f} to {high:.3f})"


_FLOOR = """\
Results below a floor are left out ([decision](../decisions/0023-floor-by-query.md)). A question is
*lost* if a search without the floor has evidence among the first five results, and a search with it
has none. *Off-topic* queries are about nothing that the texts are about; each is put to every chat
of its set. The floor was chosen on the calibration half (of BEAM: {chats}), so that only the
figures of the test half are evidence. The short texts and all off-topic queries are in
`benchmarks/retrieval/relevance.json`.
"""
_TABLE = "| | recall@5 | recall@10 | any@10 | all@10 | MRR |\n|---|---|---|---|---|---|"
_HEAD = """\
# What search finds

Written by `python -m benchmarks.retrieval PATH...` on {date}: the real recall service with embedded
PostgreSQL and the embedded vector engine, every message stored and indexed as in use, every
question asked as it stands through `SearchMessages`. No model but the local embedding model takes
part. The data sets are read from the paths that are given; none is part of the project.

- **hybrid** is what `conversation_search` uses: meaning and words together, and whose words and
  what time a question asks for ([decision](../decisions/0061-hybrid-messages.md)).
- **dense** is the cosine of the same vectors alone, **full text** the search in PostgreSQL that
  remains without the engine, **BM25** a plain one over whole messages (k1 1.2, b 0.75), and
  **substring** what the whole query stands in.
- **reranked**, where a cross-encoder is given (`--reranker FOLDER`), is hybrid with its best
  results put into order by that ([decision](../decisions/0068-reranker.md)).

A message is the unit. recall@k is the share of the evidence among the first k, any@10 whether any
of it is there, all@10 whether all of it is; each question counts alike.
"""
