"""Measures the marks of outdated results: `python -m benchmarks.retrieval.replaced_statements`.

`replaced_statements.json` has pairs of statements of one person in six languages: the newer one
replaces the older one ("update"), both hold ("compatible"), or they are about different things
("unrelated"). The rules were written with the calibration half; the test half was written before
the rules, with other words and subjects, and was only measured.

With `--chats` all marks among the messages of a user are listed, for each of the short chats and
the dialogues and for BEAM chats at the given paths. These marks have no labels: read them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.retrieval import short_chats
from benchmarks.retrieval.datasets import HALVES, Chat, load
from benchmarks.retrieval.scoring import interval
from strata.shared.search.outdated import DatedText, Outdated, possibly_outdated

UPDATE = "update"
_FILE = Path(__file__).with_suffix(".json")


class Pair(NamedTuple):
    """Two statements of one person.

    Attributes:
        half: "calibration" or "test".
        language: ISO 639-1 code.
        kind: "update", "compatible" or "unrelated".
    """

    half: str
    language: str
    kind: str
    older: str
    newer: str

    @property
    def is_marked(self) -> bool:
        """Whether the older statement gets a mark."""
        texts = [DatedText("old", self.older, "", 1.0), DatedText("new", self.newer, "", 2.0)]
        return "old" in possibly_outdated(texts)


class Share(NamedTuple):
    """A share with the numbers that it is made of."""

    part: int
    whole: int

    def __str__(self) -> str:
        low, high = interval(self.part, self.whole)
        share = self.part / self.whole if self.whole else 0.0
        return f"{share:.3f} ({self.part} of {self.whole}, {low:.3f} to {high:.3f})"


def pairs() -> list[Pair]:
    """Returns the labelled pairs."""
    return [Pair(**row) for row in json.loads(_FILE.read_text(encoding="utf-8"))]


def precision_and_recall(labelled: Iterable[Pair]) -> tuple[Share, Share]:
    """Returns the share of marks that are right, and the share of updates that are marked."""
    counts = Counter((pair.kind == UPDATE, pair.is_marked) for pair in labelled)
    right, missed, wrong = counts[True, True], counts[True, False], counts[False, True]
    return Share(right, right + wrong), Share(right, right + missed)


def marks_of(chat: Chat) -> Iterator[Outdated]:
    """Yields the marks among all messages of each user of a chat."""
    texts = [
        DatedText(turn.key, turn.text, turn.name, turn.time.timestamp())
        for turn in chat.turns
        if turn.role == "user"
    ]
    yield from possibly_outdated(texts).values()


def main() -> None:
    """Prints precision and recall, and the marks in chats if asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, help="BEAM chats for --chats")
    parser.add_argument("--chats", action="store_true", help="list the marks in chats")
    options = parser.parse_args()
    labelled = pairs()
    for half in HALVES:
        part = [pair for pair in labelled if pair.half == half]
        for language in (None, *short_chats.LANGUAGES):
            chosen = [pair for pair in part if language in (None, pair.language)]
            precision, recall = precision_and_recall(chosen)
            name = f"{half}, {language or 'all'}: {len(chosen)} pairs"
            print(f"{name:32} precision {precision}, recall {recall}")
    print(f"ten results take {1_000 * _seconds(labelled):.2f} ms of processor time")
    if options.chats:
        chats = [*short_chats.short_chats(), *short_chats.dialogues()]
        _print_marks([*chats, *(chat for path in options.paths for chat in load(path))])


def _seconds(labelled: Sequence[Pair]) -> float:
    """Returns the processor time for ten results: five pairs of one language."""
    groups = [labelled[start : start + 5] for start in range(0, len(labelled) - 4, 5)]
    started = time.process_time()
    for group in groups:
        texts = [text for pair in group for text in (pair.older, pair.newer)]
        possibly_outdated([DatedText(str(n), text, "", n) for n, text in enumerate(texts)])
    return (time.process_time() - started) / len(groups)


def _print_marks(chats: Iterable[Chat]) -> None:
    for chat in chats:
        for mark in marks_of(chat):
            print(f"{chat.name} ({chat.half})\n  - {mark.statement}\n  + {mark.newer_statement}")


if __name__ == "__main__":
    main()
