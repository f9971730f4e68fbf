"""The shipped dialogues: complete, balanced, and without small talk from lists."""

from __future__ import annotations

import json

import pytest
from benchmarks.retrieval.datasets import HALVES, Chat
from benchmarks.retrieval.short_chats import DIALOGUES_FOLDER, KINDS, dialogues


@pytest.fixture(scope="module")
def chats() -> list[Chat]:
    return list(dialogues())


def test_every_turn_is_loaded_from_its_file(chats: list[Chat]) -> None:
    files = sorted(DIALOGUES_FOLDER.glob("*.json"))
    assert len(files) == len(chats) == 8
    for chat, file in zip(chats, files, strict=True):
        sessions = json.loads(file.read_text(encoding="utf-8"))["sessions"]
        written = [turn["key"] for session in sessions for turn in session["turns"]]
        assert [turn.key for turn in chat.turns] == written
        assert 15 <= len(sessions) <= 20
        times = [turn.time for turn in chat.turns]
        assert times == sorted(times)


def test_questions_name_turns_that_exist_and_were_written_before(chats: list[Chat]) -> None:
    for chat in chats:
        times = {turn.key: turn.time for turn in chat.turns}
        assert len(chat.questions) == 30
        for question in chat.questions:
            assert question.kind in KINDS
            assert question.evidence
            assert question.evidence.isdisjoint(question.outdated)
            assert max(times[key] for key in question.evidence) < question.asked
            assert question.outdated <= times.keys()


def test_questions_do_not_quote_their_evidence(chats: list[Chat]) -> None:
    for chat in chats:
        texts = {turn.key: turn.text.lower() for turn in chat.turns}
        for question in chat.questions:
            words = question.text.lower().split()
            runs = {" ".join(words[start : start + 5]) for start in range(len(words) - 4)}
            for key in question.evidence:
                assert not any(run in texts[key] for run in runs), question.text


def test_both_halves_contain_both_shapes(chats: list[Chat]) -> None:
    for half in HALVES:
        shapes = [chat.shape for chat in chats if chat.half == half]
        assert len(shapes) == 4
        assert set(shapes) == {"people", "assistant"}
