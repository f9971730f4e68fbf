"""The shipped chats of short messages, and the shipped dialogues.

`benchmarks/retrieval/short_chats/README.md` and `benchmarks/retrieval/dialogues/README.md` describe
them. Facts and questions are written by hand. In the short chats small talk, reactions and
sentences about other people are drawn from lists with a fixed seed, so that every run builds the
same chats.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.retrieval.datasets import Chat, Question, Turn

FOLDER = Path(__file__).with_name("short_chats")
NAME = "short chats"
DIALOGUES_FOLDER = Path(__file__).with_name("dialogues")
DIALOGUES = "dialogues"
LANGUAGES = ("en", "de", "fr", "es", "zh", "ja")
KINDS = (
    "single fact",
    "several facts",
    "time",
    "change of mind",
    "negation",
    "typo",
    "identifier",
    "emoji",
)

_SMALL_TALK = "small_talk.json"
_EXTRA_SESSIONS = 2
"""Sessions of small talk only, in the middle of the longest gaps between the others."""
# First letter of the keys of turns that are clear only from the turns before.
_IN_EXCHANGE = "c"
_NOON = timedelta(hours=12)


@dataclass(frozen=True, slots=True)
class _Line:
    """A message before it has a time."""

    by: str
    text: str
    language: str
    key: str = ""


def short_chats() -> Iterator[Chat]:
    """Yields the shipped chats, in a fixed order."""
    lists = json.loads((FOLDER / _SMALL_TALK).read_text(encoding="utf-8"))
    for file in sorted(FOLDER.glob("*.json")):
        if file.name != _SMALL_TALK:
            yield _Builder(json.loads(file.read_text(encoding="utf-8")), lists).chat()


def dialogues() -> Iterator[Chat]:
    """Yields the shipped dialogues, in a fixed order."""
    lists = json.loads((FOLDER / _SMALL_TALK).read_text(encoding="utf-8"))
    for file in sorted(DIALOGUES_FOLDER.glob("*.json")):
        yield _Builder(json.loads(file.read_text(encoding="utf-8")), lists, filler=False).chat()


class _Builder:
    """Builds one chat from its file and the lists of small talk.

    Args:
        data: The content of the file.
        lists: The lists of small talk.
        filler: Add small talk, reactions and sessions of small talk.
    """

    def __init__(
        self, data: Mapping[str, Any], lists: Mapping[str, Any], *, filler: bool = True
    ) -> None:
        self._data = data
        self._has_filler = filler
        self._name: str = data["name"]
        self._language: str = data["language"]
        self._people: Mapping[str, str] = data["people"]
        self._lists = lists
        self._random = Random(self._name)  # the same in every run
        self._small_talk = {
            language: self._shuffled(lists[language]["small_talk"])
            for language in self._languages()
        }
        self._other_people = {
            language: self._shuffled(lists[language]["other_people"])
            for language in self._languages()
        }

    def chat(self) -> Chat:
        """Returns the chat with its questions."""
        sessions = self._sessions()
        self._add_asides([lines for _, lines in sessions])
        turns: list[Turn] = []
        languages: dict[str, str] = {}
        for number, (start, lines) in enumerate(sessions):
            time = start
            for index, line in enumerate(lines):
                key = line.key or f"s{number}.{index}"
                languages[key] = line.language
                turns.append(self._turn(key, line, time, number))
                time += timedelta(seconds=self._random.randint(15, 120))
        last = sessions[-1][0].replace(hour=0, minute=0) + timedelta(days=3)
        questions = [self._question(item, languages, last) for item in self._data["questions"]]
        shape = "people" if self._people else "assistant"
        return Chat(self._name, turns, questions, self._data["half"], self._language, shape)

    def _turn(self, key: str, line: _Line, time: datetime, session: int) -> Turn:
        if self._people:
            return Turn(key, "user", line.text, time, line.by, session, line.language)
        return Turn(key, line.by, line.text, time, "", session, line.language)

    def _question(
        self, item: Mapping[str, Any], languages: Mapping[str, str], last: datetime
    ) -> Question:
        evidence = item["evidence"]
        day = datetime.fromisoformat(item["asked"]).replace(tzinfo=UTC) if "asked" in item else last
        return Question(
            item["kind"],
            item["text"],
            frozenset(evidence),
            day + _NOON,
            item["language"],
            languages[evidence[0]],
            frozenset(item.get("outdated", ())),
            all(key.startswith(_IN_EXCHANGE) for key in evidence),
        )

    def _sessions(self) -> list[tuple[datetime, list[_Line]]]:
        sessions = [
            (_time(item["time"]), self._written(item["turns"])) for item in self._data["sessions"]
        ]
        if not self._has_filler:
            return sessions
        gaps = [(after - before, before) for (before, _), (after, _) in pairwise(sessions)]
        for gap, before in sorted(gaps, reverse=True)[:_EXTRA_SESSIONS]:
            minute = self._random.randint(0, 59)
            start = (before + gap / 2).replace(hour=self._random.randint(7, 21), minute=minute)
            sessions.append((start, self._filler(3)))
        return sorted(sessions, key=lambda session: session[0])

    def _written(self, items: Sequence[Mapping[str, Any]]) -> list[_Line]:
        """Returns the lines of a file's session, with reactions and small talk around them."""
        written = [
            _Line(
                item["by"], item["text"], item.get("language", self._language), item.get("key", "")
            )
            for item in items
        ]
        if not self._has_filler:
            return written
        lines = self._greeting()
        for line, after in zip(written, [*items[1:], None], strict=True):
            lines.append(line)
            same = after is None or after["by"] == line.by
            if line.by != "assistant" and same and self._random.random() < self._reacting():
                lines.append(self._reaction(line.by))
            # Between named people, the next line often answers this one.
            if not self._people and same and self._random.random() < 0.15:
                lines += self._other_person()
        return lines + self._filler(1)

    def _reacting(self) -> float:
        return 0.5 if self._people else 0.85

    def _filler(self, least: int) -> list[_Line]:
        lines: list[_Line] = []
        for _ in range(self._random.randint(least, least + 1)):
            lines += self._other_person()
            if self._random.random() < 0.6:
                lines += self._greeting()
        return lines

    def _greeting(self) -> list[_Line]:
        """Returns a line of small talk and its answer."""
        by = self._speaker()
        answerer = self._answerer(by)
        entries = self._small_talk[self._language_of(by)]
        text, answer = entries.pop(0)
        entries.append((text, answer))
        if self._language_of(answerer) != self._language_of(by):
            return [_Line(by, text, self._language_of(by)), self._reaction(by)]
        return [
            _Line(by, text, self._language_of(by)),
            _Line(answerer, answer, self._language_of(answerer)),
        ]

    def _other_person(self) -> list[_Line]:
        """Returns a sentence about somebody whom no question asks for, and a reaction."""
        by = self._speaker()
        language = self._language_of(by)
        entries = self._other_people[language]
        entries.append(entries.pop(0))
        words = self._lists[language]["words"]
        text = entries[-1].format(**{name: self._random.choice(words[name]) for name in words})
        return [_Line(by, text, language), self._reaction(by)]

    def _reaction(self, to: str) -> _Line:
        by = self._answerer(to)
        language = self._language_of(by)
        return _Line(by, self._random.choice(self._lists[language]["reactions"]), language)

    def _add_asides(self, sessions: Sequence[list[_Line]]) -> None:
        """Adds each aside to a session, not before the turn that it follows."""
        for item in self._data["asides"]:
            after = item.get("after")
            first = next(
                (
                    number
                    for number, lines in enumerate(sessions)
                    if any(line.key == after for line in lines)
                ),
                0,
            )
            by = item["by"]
            lines = [_Line(by, item["text"], self._language_of(by))]
            if self._random.random() < 0.5:
                lines.append(self._reaction(by))
            session = self._random.choice(sessions[first:])
            # Before the session's own lines, unless the turn that it follows is among them.
            index = len(session) if session is sessions[first] else 0
            session[index:index] = lines

    def _speaker(self) -> str:
        return self._random.choice([*self._people]) if self._people else "user"

    def _answerer(self, by: str) -> str:
        if not self._people:
            return "assistant"
        return self._random.choice([person for person in self._people if person != by])

    def _language_of(self, by: str) -> str:
        return self._people.get(by, self._language)

    def _languages(self) -> list[str]:
        return sorted({self._language, *self._people.values()})

    def _shuffled(self, values: Sequence[Any]) -> list[Any]:
        copy = [*values]
        self._random.shuffle(copy)
        return copy


def _time(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%d %H:%M").replace(tzinfo=UTC)
