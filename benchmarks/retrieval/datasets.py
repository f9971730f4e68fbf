"""Public data sets of long chats with questions, read from files given by path.

None of their data is part of the project. Supported are BEAM (a folder per chat), LoCoMo and
LongMemEval (JSON), and plain facts::

    {"texts": ["She is allergic to peanuts.", ...],
     "questions": [{"question": "What must she not eat?", "evidence": [0], "type": "..."}]}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

FACTUAL = (
    "information_extraction",
    "multi_session_reasoning",
    "knowledge_update",
    "temporal_reasoning",
    "contradiction_resolution",
)
"""The question types of BEAM whose evidence is facts. The others ask for standing instructions,
summaries and orders of events, which a search for ten messages cannot answer."""

HALVES = ("calibration", "test")
BEAM_CALIBRATION = frozenset(("100K-1", "100K-3", "100K-5", "500K-1"))
"""The chats of BEAM on which weights may be chosen."""

_START = datetime(2024, 1, 1, 9, tzinfo=UTC)
_BEAM_MARK = re.compile(r"\s*->->\s*[\d,\s]*$")
_LOCOMO_TYPES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}


@dataclass(frozen=True, slots=True)
class Turn:
    """A message of a chat.

    Attributes:
        key: Name of the turn, unique in its chat.
        role: "user" or "assistant".
        name: Name of the person who writes, if the data set has one.
        session: Number of the session, from 0. In BEAM a session is the part between two time
            anchors.
        language: ISO 639-1 code of its language.
    """

    key: str
    role: str
    text: str
    time: datetime
    name: str = ""
    session: int = 0
    language: str = "en"


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a chat.

    Attributes:
        evidence: Keys of the turns that answer it, at least one; of several statements about one
            thing, the newest.
        asked: Time when it is asked.
        language: ISO 639-1 code of its language.
        evidence_language: Language of the turns that answer it.
        outdated: Keys of turns that were the answer before.
        needs_context: Whether the evidence is clear only from the turns before it.
    """

    kind: str
    text: str
    evidence: frozenset[str]
    asked: datetime
    language: str = "en"
    evidence_language: str = "en"
    outdated: frozenset[str] = frozenset()
    needs_context: bool = False


@dataclass(frozen=True, slots=True)
class Chat:
    """The messages of one agent, and the questions about them.

    Attributes:
        half: "calibration" if weights may be chosen on the chat, "test" if it is only reported.
        shape: "assistant", or "people" if all turns are of users with names.
    """

    name: str
    turns: Sequence[Turn]
    questions: Sequence[Question]
    half: str = "test"
    language: str = "en"
    shape: str = "assistant"


def halves(chats: Iterable[Chat]) -> dict[str, list[Chat]]:
    """Returns the chats by half; a half without chats is left out."""
    parts: dict[str, list[Chat]] = {half: [] for half in HALVES}
    for chat in chats:
        parts[chat.half].append(chat)
    return {half: part for half, part in parts.items() if part}


def load(path: Path) -> Iterator[Chat]:
    """Yields the chats at a path.

    Raises:
        ValueError: The format is not supported.
    """
    if path.is_dir():
        if (path / "chat.json").exists():
            yield _beam(path)
            return
        folders = sorted(file.parent for file in path.glob("*/chat.json"))
        if not folders:
            raise ValueError(f"{path} is not a folder of BEAM chats")
        for folder in folders:
            yield _beam(folder)
        return
    data = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(data, dict) and "texts" in data:
        yield facts(path.stem, data)
        return
    items = data if isinstance(data, list) else [data]
    for number, item in enumerate(items):
        if "haystack_sessions" in item:
            chat = _longmemeval(item)
        elif "conversation" in item and "qa" in item:
            chat = _locomo(str(item.get("sample_id", number)), item)
        else:
            raise ValueError(f"{path} has an unknown format: expected LoCoMo, LongMemEval or facts")
        if chat.questions:
            yield chat


def _beam(folder: Path) -> Chat:
    batches = json.loads((folder / "chat.json").read_text(encoding="utf-8"))
    turns: list[Turn] = []
    time = _START
    session = 0
    for message in (turn for batch in batches for group in batch["turns"] for turn in group):
        if anchor := message.get("time_anchor"):
            time = max(time, datetime.strptime(anchor, "%B-%d-%Y").replace(hour=9, tzinfo=UTC))
            session += bool(turns)
        time += timedelta(minutes=1)
        text = _BEAM_MARK.sub("", message["content"])
        turns.append(Turn(str(message["id"]), message["role"], text, time, session=session))
    file = folder / "probing_questions" / "probing_questions.json"
    turn_keys = {turn.key for turn in turns}
    asked = time + timedelta(hours=1)
    questions = [
        Question(kind, item["question"], evidence, asked)
        for kind, items in json.loads(file.read_text(encoding="utf-8")).items()
        for item in items
        if (evidence := frozenset(map(str, _numbers(item.get("source_chat_ids")))) & turn_keys)
    ]
    half = "calibration" if folder.name in BEAM_CALIBRATION else "test"
    return Chat(folder.name, turns, questions, half)


def _numbers(value: Any) -> Iterable[int]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _numbers(item)
    elif isinstance(value, list):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, int):
        yield value


def _locomo(name: str, item: dict[str, Any]) -> Chat:
    """Reads a chat of two people, who are both users with a name."""
    talk = item["conversation"]
    turns: list[Turn] = []
    number = 1
    time = _START
    while (session := talk.get(f"session_{number}")) is not None:
        if date_time := talk.get(f"session_{number}_date_time"):
            time = datetime.strptime(date_time, "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
        for line in session:
            time += timedelta(seconds=20)
            caption = line.get("blip_caption")
            text = line["text"] + (f" [image: {caption}]" if caption else "")
            turns.append(Turn(line["dia_id"], "user", text, time, line["speaker"], number - 1))
        number += 1
    turn_keys = {turn.key for turn in turns}
    asked = time + timedelta(days=1)
    questions = [
        Question(_LOCOMO_TYPES.get(qa.get("category"), "other"), qa["question"], evidence, asked)
        for qa in item["qa"]
        if (evidence := frozenset(re.findall(r"D\d+:\d+", str(qa.get("evidence")))) & turn_keys)
    ]
    return Chat(f"locomo-{name}", turns, questions, shape="people")


def _longmemeval(item: dict[str, Any]) -> Chat:
    """Reads one question with its own history."""
    turns: list[Turn] = []
    evidence: set[str] = set()
    for number, session in enumerate(item["haystack_sessions"]):
        time = _slashed(item["haystack_dates"][number])
        for index, message in enumerate(session):
            key = f"{number}:{index}"
            time += timedelta(seconds=20)
            turns.append(Turn(key, message["role"], message["content"], time, session=number))
            if message.get("has_answer"):
                evidence.add(key)
    turns.sort(key=lambda turn: turn.time)
    asked = _slashed(item["question_date"])
    questions = [Question(item["question_type"], item["question"], frozenset(evidence), asked)]
    return Chat(f"longmemeval-{item['question_id']}", turns, questions if evidence else [])


def _slashed(text: str) -> datetime:
    return datetime.strptime(re.sub(r"\s*\(\w+\)", "", text), "%Y/%m/%d %H:%M").replace(tzinfo=UTC)


def facts(name: str, data: Mapping[str, Any]) -> Chat:
    """Returns plain facts and the questions about them as a chat."""
    turns = [
        Turn(str(index), "user", text, _START + timedelta(minutes=index))
        for index, text in enumerate(data["texts"])
    ]
    asked = _START + timedelta(minutes=len(turns))
    questions = [
        Question(
            item.get("type", "fact"),
            item["question"],
            frozenset(map(str, item["evidence"])),
            asked,
        )
        for item in data["questions"]
    ]
    return Chat(name, turns, questions)
