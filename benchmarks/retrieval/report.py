"""The report of the retrieval benchmark: a document with plots, and all figures as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.retrieval.datasets import HALVES
from benchmarks.retrieval.floor import FloorEffect
from benchmarks.retrieval.methods import HYBRID, TOOL
from benchmarks.retrieval.plots import bars
from benchmarks.retrieval.scoring import (
    ALL,
    NEWEST_FIRST,
    PER_1000,
    SESSION_METRICS,
    SHOWN,
    TOKENS,
    TURN_METRICS,
    Answer,
    Figure,
    Figures,
    figures,
    groups_of,
    interval,
)

NAME = "retrieval"
_CALIBRATION, _TEST = HALVES
_HALF_NAMES = {_CALIBRATION: "calibration (tuned on)", _TEST: "test"}
_MAIN = ("recall@5", "recall@10", "any@10", "all@10", "MRR", *SESSION_METRICS)
# Smaller groups are too small to show a difference.
_FEWEST = 10

# Figures by data set, half, group and method.
ByMethod = Mapping[str, Figures]
ByGroup = Mapping[str, ByMethod]


@dataclass
class Result:
    """The results of one run.

    Attributes:
        methods: The measured methods, in order.
        answers: The scores of each question.
        seconds: Latency through the service: p50 and p95, by name.
        facts: Sizes and counts as text, by name.
        floors: The effect of the floor, by data set and half.
    """

    methods: Sequence[str]
    answers: list[Answer] = field(default_factory=list)
    seconds: dict[str, tuple[float, float]] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    floors: dict[str, dict[str, FloorEffect]] = field(default_factory=dict)

    @cached_property
    def figures(self) -> dict[str, dict[str, ByGroup]]:
        """The figures by data set, half, group and method; read when all answers are there."""
        grouped: dict[str, dict[str, dict[str, list[Answer]]]] = {}
        for answer in self.answers:
            groups = grouped.setdefault(answer.data_set, {}).setdefault(answer.chat.half, {})
            for group in groups_of(answer):
                groups.setdefault(group, []).append(answer)
        return {
            name: {
                half: {
                    group: {method: figures(answers, method) for method in self.methods}
                    for group, answers in sorted(halves[half].items())
                }
                for half in HALVES
                if half in halves
            }
            for name, halves in grouped.items()
        }

    def save(self, file: Path) -> None:
        """Writes all figures, and the scores and ranks of every question, as JSON."""
        plain = {
            name: {
                half: {
                    group: {method: entry.plain() for method, entry in by_method.items()}
                    for group, by_method in groups.items()
                }
                for half, groups in halves.items()
            }
            for name, halves in self.figures.items()
        }
        floors = {
            name: {half: effect.counts() for half, effect in halves.items()}
            for name, halves in self.floors.items()
        }
        data: dict[str, Any] = {
            "figures": plain,
            "seconds": self.seconds,
            "facts": self.facts,
            "floors": floors,
            "answers": [answer.plain() for answer in self.answers],
        }
        file.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def write(self, folder: Path) -> None:
        """Writes the document and its plots."""
        folder.mkdir(parents=True, exist_ok=True)
        parts = [_HEAD.format(date=datetime.now(UTC).strftime("%Y-%m-%d"))]
        for name, halves in self.figures.items():
            parts += self._data_set(folder, name, halves)
        if TOOL in self.methods:
            parts += self._shown()
        parts += self._behind()
        if self.floors:
            parts += _floors(self.floors)
        if self.seconds:
            parts += ["## Time and space", "", "| through the service | p50 ms | p95 ms |"]
            parts.append("|---|---|---|")
            parts += [
                f"| {name} | {p50 * 1000:.1f} | {p95 * 1000:.1f} |"
                for name, (p50, p95) in self.seconds.items()
            ]
            parts.append("")
        parts += [f"- {name}: {text}" for name, text in self.facts.items()]
        (folder / f"{NAME}.md").write_text("\n".join(parts) + "\n", encoding="utf-8")

    @property
    def _ranked(self) -> list[str]:
        """The methods that rank turns or sessions."""
        return [method for method in self.methods if method != TOOL]

    def _data_set(self, folder: Path, name: str, halves: Mapping[str, ByGroup]) -> list[str]:
        title = name[0].upper() + name[1:]
        parts = [f"## {title}", "", *_main_table(halves, self._ranked), ""]
        parts += self._kinds(folder, title, halves)
        if any("languages: different" in groups for groups in halves.values()):
            parts += self._languages(halves)
        return parts

    def _kinds(self, folder: Path, title: str, halves: Mapping[str, ByGroup]) -> list[str]:
        """Returns recall@10 by type of question, as a table and a plot."""
        turns = [
            method
            for method in self._ranked
            if any("recall@10" in groups[ALL][method].metrics for groups in halves.values())
        ]
        half = _TEST if _TEST in halves else _CALIBRATION
        groups = halves[half]
        kinds = _named(groups, "type: ")
        rows = [*kinds, *_named(groups, "shape: "), *_named(groups, "wording: ")]
        values = {
            group.removeprefix("type: "): {
                method: groups[group][method].metrics["recall@10"].value for method in turns
            }
            for group in [ALL, *kinds]
        }
        file = f"{NAME}-{re.sub(r'[^a-z0-9]+', '-', title.lower())}.svg"
        (folder / file).write_text(bars(f"{title}, {half}: recall@10", values, turns), "utf-8")
        changing = any(NEWEST_FIRST in groups[ALL][method].metrics for method in turns)
        parts = [
            f"recall@10 by type of question, {_HALF_NAMES[half]} half:",
            "",
            _row(["type", "questions", *turns]),
            "|---" * (len(turns) + 2) + "|",
            *(
                _row(
                    [
                        group.removeprefix("type: ").replace("_", " "),
                        str(groups[group][turns[0]].questions),
                        *(_text(groups[group][method], "recall@10") for method in turns),
                    ]
                )
                for group in rows
            ),
            "",
        ]
        if changing:
            shares = ", ".join(
                f"{method} {_text(groups[ALL][method], NEWEST_FIRST)}" for method in turns
            )
            parts += [f"A newer statement stands before the one it replaces: {shares}.", ""]
        return [*parts, f"![recall@10 by type of question]({file})", ""]

    def _languages(self, halves: Mapping[str, ByGroup]) -> list[str]:
        """Returns hit@1 and hit@3 by language."""
        turns = [
            method
            for method in self._ranked
            if any("hit@1" in groups[ALL][method].metrics for groups in halves.values())
        ]
        parts = [
            "hit@1 / hit@3 by language (*same*: question and text are in one language):",
            "",
            _row(["half", "languages", "questions", *turns]),
            "|---" * (len(turns) + 3) + "|",
        ]
        for half, groups in halves.items():
            for group in groups:
                # The sums are enough for the half that was used for tuning.
                if not group.startswith("language" if half == _TEST else "languages"):
                    continue
                name = re.sub(r"languages?: ", "", group)
                entries = groups[group]
                cells = [
                    f"{_text(entries[method], 'hit@1')} / {_text(entries[method], 'hit@3')}"
                    for method in turns
                ]
                count = str(entries[turns[0]].questions)
                parts.append(_row([_HALF_NAMES[half], name, count, *cells]))
        return [*parts, ""]

    def _shown(self) -> list[str]:
        """Returns the section about what the tool shows."""
        parts = ["## What conversation_search shows", "", _SHOWN]
        parts += ["| set | half | evidence shown | tokens | per 1,000 tokens |", "|---" * 5 + "|"]
        for name, halves in self.figures.items():
            for half, groups in halves.items():
                entry = groups[ALL][TOOL]
                share, tokens = entry.metrics[SHOWN], entry.metrics[TOKENS].value
                per = entry.metrics[PER_1000].value
                parts.append(
                    _row([name, _HALF_NAMES[half], _figure(share), f"{tokens:.0f}", f"{per:.3f}"])
                )
        return [*parts, ""]

    def _behind(self) -> list[str]:
        """Returns the section about groups of the test half in which another method is better."""
        lines = [
            _row(
                [
                    name,
                    better.group,
                    str(better.questions),
                    better.metric,
                    f"{better.hybrid_value:.3f}",
                    f"{better.value:.3f} ({better.method})",
                ]
            )
            for name, halves in self.figures.items()
            for better in _better(halves.get(_TEST, {}))
        ]
        if HYBRID not in self.methods or not lines:
            return []
        return [
            "## Where hybrid is behind",
            "",
            f"Groups of at least {_FEWEST} questions of the test half, with the best other method:",
            "",
            "| set | questions | number | metric | hybrid | better |",
            "|---" * 6 + "|",
            *lines,
            "",
        ]


def print_figures(result: Result) -> None:
    """Prints the main figures."""
    for name, halves in result.figures.items():
        for half, groups in halves.items():
            if ALL not in groups or not result.methods:
                continue
            print(f"{name}, {_HALF_NAMES[half]}")
            for method, entry in groups[ALL].items():
                cells = [
                    f"{metric} {entry.metrics[metric].value:.3f}"
                    for metric in (*TURN_METRICS, *SESSION_METRICS, SHOWN, TOKENS)
                    if metric in entry.metrics
                ]
                print(f"  {method:20s} {'  '.join(cells)}")
    for name, effects in result.floors.items():
        for half, effect in effects.items():
            print(
                f"floor, {name}, {half}: {sum(effect.lost.values())} of"
                f" {sum(effect.answered.values())} lost, nothing for"
                f" {sum(effect.nothing.values())} of {sum(effect.asked.values())} off topic"
            )


def _main_table(halves: Mapping[str, ByGroup], methods: Sequence[str]) -> list[str]:
    parts = [_row(["half", "questions", "method", *_MAIN]), "|---" * (len(_MAIN) + 3) + "|"]
    for half, groups in halves.items():
        for method in methods:
            entry = groups[ALL][method]
            cells = [
                _figure(entry.metrics[name]) if name in entry.metrics else "" for name in _MAIN
            ]
            parts.append(_row([_HALF_NAMES[half], str(entry.questions), method, *cells]))
    return parts


def _named(groups: ByGroup, prefix: str) -> list[str]:
    """Returns the groups with a prefix; none if there is only one, which has all questions."""
    names = [group for group in groups if group.startswith(prefix)]
    return names if len(names) > 1 else []


class _Better(NamedTuple):
    """A method with a higher figure than hybrid in a group of questions."""

    group: str
    questions: int
    metric: str
    hybrid_value: float
    value: float
    method: str


def _better(groups: ByGroup) -> Iterator[_Better]:
    """Yields the groups in which another method has a higher figure than hybrid."""
    for group, entries in groups.items():
        if HYBRID not in entries or entries[HYBRID].questions < _FEWEST:
            continue
        for metric in ("recall@10", "session any@5"):
            values = {
                method: entry.metrics[metric].value
                for method, entry in entries.items()
                if metric in entry.metrics
            }
            best = max(values, key=lambda method: values[method])
            if values[best] > values[HYBRID]:
                count = entries[HYBRID].questions
                yield _Better(group, count, metric, values[HYBRID], values[best], best)


def _floors(effects: Mapping[str, Mapping[str, FloorEffect]]) -> list[str]:
    """Returns the section about the floor."""
    parts = ["## The floor", "", _FLOOR]
    parts += ["| set | half | lost | off-topic queries without results | without a floor |"]
    parts.append("|---" * 5 + "|")
    for name, halves in effects.items():
        for half, effect in halves.items():
            lost, answered = sum(effect.lost.values()), sum(effect.answered.values())
            nothing, asked = sum(effect.nothing.values()), sum(effect.asked.values())
            without = sum(effect.nothing_without.values())
            cells = [_share(lost, answered), _share(nothing, asked), str(without) if asked else "-"]
            parts.append(_row([name, _HALF_NAMES[half], *cells]))
    return [*parts, ""]


def _share(part: int, whole: int) -> str:
    if not whole:
        return "-"
    low, high = interval(part, whole)
    return f"{part} of {whole} ({low:.3f} to {high:.3f})"


def _figure(figure: Figure) -> str:
    if figure.interval is None:
        return f"{figure.value:.3f}"
    return f"{figure.value:.3f} ({figure.interval[0]:.3f} to {figure.interval[1]:.3f})"


def _text(entry: Figures, metric: str) -> str:
    return f"{entry.metrics[metric].value:.3f}" if metric in entry.metrics else "-"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


_FLOOR = """\
Results below a floor are left out ([decision](../decisions/0023-floor-by-query.md)). A question is
*lost* if a search without the floor has evidence among the first five results, and a search with
it has none. *Off-topic* queries have no answer in the texts. Each is asked of every chat of its
set, but not of the chats of the repository, which cover too many subjects. The queries and the
single sentences are in `benchmarks/retrieval/relevance.json`. In brackets are 95 % intervals.
"""
_SHOWN = """\
The share of the evidence that the return of the tool contains, with its defaults and at the time
of the question, and the tokens of the return, as the agent loop estimates them. If only a part of
a long message is shown, its share is that of the shown sentences.
"""
_HEAD = """\
# What search finds

Written by `python -m benchmarks.retrieval PATH... --out docs/benchmarks` on {date}: the real recall
service with embedded PostgreSQL and the embedded vector engine. Every message is stored and
indexed as in production, and every question is sent unchanged to `SearchMessages`. The only model
is the local embedding model. The short chats are in `benchmarks/retrieval/short_chats`, the
dialogues in `benchmarks/retrieval/dialogues`; other data sets are read from the paths. `--json`
writes all figures and the rank of every piece of evidence, and
`python -m benchmarks.retrieval.compare OLD NEW` compares two such files.

- **hybrid** is what `conversation_search` uses: meaning and words together, the speaker and the
  time that a question names ([0061](../decisions/0061-hybrid-messages.md),
  [0163](../decisions/0163-speakers-and-the-first-person.md)), the messages around a message
  ([0133](../decisions/0133-surroundings-and-the-present.md)), and an order that was learned on the
  calibration halves ([0135](../decisions/0135-learned-order.md)).
- **dense** is the cosine of the same vectors alone. **full text** is the search in PostgreSQL,
  which is used if the engine is not available.
- **BM25** (k1 1.2, b 0.75) has stems and stop words by language, pairs of characters in Chinese and
  Japanese, and the date and the speaker as words. The language of every text and question is an
  input. **BM25 over sessions** is the same over whole sessions; it ranks no turns. **Plain BM25**
  has English suffixes removed and nothing else.
- **reranked** is hybrid with its best results reordered by a cross-encoder; it is measured only
  with `--reranker FOLDER` ([decision](../decisions/0068-reranker.md)).

recall@k is the share of the evidence among the first k messages. any@10 is 1 if any of the
evidence is among the first 10, all@10 if all of it is, hit@k if any of it is among the first k.
Each question has the same weight. *Shared words* are questions that share a word with their
evidence that is rare in the chat; *needs context* are questions whose evidence is clear only from
the messages before it. The rank of a session is that of its first message among 50 results. In
BEAM a session is the part between two time anchors, and the main table contains only the types of
questions whose evidence is facts. In brackets are 95 % intervals (bootstrap over questions).

The **calibration** half was *tuned on*: weights of the search may have been chosen by its figures.
Only the figures of the **test** half are evidence
([decision](../decisions/0130-retrieval-benchmark.md)).
"""
