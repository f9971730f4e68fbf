"""The shipped chats of short messages: complete, balanced, and the same in every run."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter

import pytest
from benchmarks.retrieval.datasets import HALVES, Chat, Turn
from benchmarks.retrieval.short_chats import FOLDER, KINDS, LANGUAGES, short_chats

_DIGEST = "b96194a2586ff1bc87d6a6d8b0f2ab7ea3d1552576fad37a491538d4c6264bc5"
_CJK = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")


@pytest.fixture(scope="module")
def chats() -> list[Chat]:
    return list(short_chats())


def words(text: str) -> set[str]:
    """Returns words, and pairs of characters in Chinese and Japanese."""
    tokens: set[str] = set()
    for word in re.findall(r"\w+", text.lower()):
        if _CJK.search(word):
            tokens |= {word[place : place + 2] for place in range(max(1, len(word) - 1))}
        else:
            tokens.add(word)
    return tokens


def by_key(chat: Chat) -> dict[str, Turn]:
    return {turn.key: turn for turn in chat.turns}


def test_every_run_builds_the_same_chats(chats: list[Chat]) -> None:
    plain = [
        [chat.name, chat.half, chat.language, chat.shape]
        + [
            [turn.key, turn.role, turn.name, turn.text, turn.time.isoformat(), turn.session]
            for turn in chat.turns
        ]
        + [
            [
                question.kind,
                question.text,
                question.language,
                question.evidence_language,
                question.asked.isoformat(),
                sorted(question.evidence),
                sorted(question.outdated),
                question.needs_context,
            ]
            for question in chat.questions
        ]
        for chat in chats
    ]
    text = json.dumps(plain, ensure_ascii=False)
    assert hashlib.sha256(text.encode()).hexdigest() == _DIGEST


def test_chats_are_short_messages_over_months(chats: list[Chat]) -> None:
    assert len(chats) == 20
    for chat in chats:
        assert 15 <= len({turn.session for turn in chat.turns}) <= 25
        assert 150 <= len(chat.turns) <= 300
        assert len(by_key(chat)) == len(chat.turns)
        times = [turn.time for turn in chat.turns]
        assert times == sorted(times)
        assert (times[-1] - times[0]).days > 150
        assert max(len(turn.text) for turn in chat.turns) <= 120
        sessions = [turn.session for turn in chat.turns]
        assert sessions == sorted(sessions)
        names = {turn.name for turn in chat.turns}
        roles = {turn.role for turn in chat.turns}
        if chat.shape == "people":
            assert (len(names), roles) == (len(names - {""}), {"user"})
        else:
            assert (names, roles) == ({""}, {"user", "assistant"})


def test_questions_name_turns_that_exist_and_were_written_before(chats: list[Chat]) -> None:
    for chat in chats:
        turns = by_key(chat)
        assert len({question.text for question in chat.questions}) == len(chat.questions)
        for question in chat.questions:
            assert question.kind in KINDS
            assert question.evidence
            assert {question.language, question.evidence_language} <= set(LANGUAGES)
            assert question.evidence.isdisjoint(question.outdated)
            assert max(turns[key].time for key in question.evidence) < question.asked
            for key in question.outdated:
                newest = max(turns[new].time for new in question.evidence)
                assert turns[key].time < newest, question.text


def test_questions_do_not_repeat_their_evidence(chats: list[Chat]) -> None:
    shares = []
    for chat in chats:
        turns = by_key(chat)
        for question in chat.questions:
            asked = words(question.text)
            evidence = set().union(*(words(turns[key].text) for key in question.evidence))
            shares.append(len(asked & evidence) / len(asked))
            assert shares[-1] <= 0.8, question.text
    assert sum(shares) / len(shares) < 0.25


def test_the_halves_have_the_same_languages_and_shapes(chats: list[Chat]) -> None:
    for read in ("language", "shape"):
        counts = [
            Counter(getattr(chat, read) for chat in chats if chat.half == half) for half in HALVES
        ]
        assert counts[0] == counts[1], read
    questions = [sum(len(chat.questions) for chat in chats if chat.half == half) for half in HALVES]
    assert sum(questions) > 500
    assert max(questions) / min(questions) < 1.2


def test_both_halves_have_every_kind_and_pair_of_languages(chats: list[Chat]) -> None:
    for half in HALVES:
        questions = [question for chat in chats if chat.half == half for question in chat.questions]
        kinds = Counter(question.kind for question in questions)
        assert min(kinds[kind] for kind in KINDS) >= 8, kinds
        assert sum(question.needs_context for question in questions) >= 50
        languages = Counter(
            question.language
            for question in questions
            if question.language == question.evidence_language
        )
        assert min(languages[language] for language in LANGUAGES) >= 18, languages
        asked_in_english = Counter(
            question.evidence_language for question in questions if question.language == "en"
        )
        asked_about_english = Counter(
            question.language for question in questions if question.evidence_language == "en"
        )
        for language in LANGUAGES:
            assert asked_in_english[language] >= 3, (half, language)
            assert asked_about_english[language] >= 1, (half, language)


def test_names_in_small_talk_occur_in_no_question(chats: list[Chat]) -> None:
    lists = json.loads((FOLDER / "small_talk.json").read_text(encoding="utf-8"))
    for chat in chats:
        people = {name for entry in lists.values() for name in entry["words"]["person"]}
        towns = {name for entry in lists.values() for name in entry["words"]["town"]}
        evidence = {key for question in chat.questions for key in question.evidence}
        texts = [by_key(chat)[key].text for key in evidence]
        texts += [question.text for question in chat.questions]
        for name in people | towns:
            assert not any(re.search(rf"\b{name}\b", text) for text in texts), name
