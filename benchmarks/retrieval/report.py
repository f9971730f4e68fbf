"""What was measured, as a document with plots."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.retrieval.plots import bars
from benchmarks.retrieval.scoring import ALL, Score

NAME = "retrieval"


@dataclass
class Result:
    """One run.

    Attributes:
        scores: By data set, then method, then type of question.
        seconds: Through the service: p50 and p95, by name.
        facts: Sizes and counts, in words.
    """

    scores: dict[str, dict[str, dict[str, Score]]] = field(default_factory=dict)
    seconds: dict[str, tuple[float, float]] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)

    def write(self, folder: Path, methods: Sequence[str], headline: Sequence[str]) -> None:
        """Writes the document, its plots, and the figures for a program."""
        folder.mkdir(parents=True, exist_ok=True)
        parts = [_HEAD.format(date=datetime.now(UTC).strftime("%Y-%m-%d"))]
        for data_set, by_method in self.scores.items():
            parts += self._data_set(folder, data_set, by_method, methods, headline)
        parts.append("## Time and room\n")
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
        data = {"scores": plain, "seconds": self.seconds, "facts": self.facts}
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


_TABLE = "| | recall@5 | recall@10 | any@10 | all@10 | MRR |\n|---|---|---|---|---|---|"
_HEAD = """\
# What search finds

Written by `python -m benchmarks.retrieval PATH...` on {date}: the real recall room with embedded
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
