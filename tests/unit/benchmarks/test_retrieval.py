"""The benchmark of search: its input formats and its scores."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from benchmarks.retrieval.__main__ import select
from benchmarks.retrieval.baselines import Bm25, document_of, plain_words, words_of
from benchmarks.retrieval.compare import differences, read
from benchmarks.retrieval.datasets import Chat, Question, Turn, halves, load
from benchmarks.retrieval.evidence_shown import shown
from benchmarks.retrieval.floor import FEW, FloorEffect, relevance_sets
from benchmarks.retrieval.methods import METHODS, TOOL, ChatBaselines
from benchmarks.retrieval.plots import bars
from benchmarks.retrieval.report import Result
from benchmarks.retrieval.scoring import (
    ALL,
    NEWEST_FIRST,
    SESSION_METRICS,
    SHOWN,
    TOKENS,
    Answer,
    Ranking,
    bootstrap,
    groups_of,
    interval,
    ranks,
    score,
    sessions_of,
)
from benchmarks.retrieval.service import identity_of

from strata.shared.tool_returns import pack


def one(path: Path) -> Chat:
    [chat] = load(path)
    return chat


def written(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def test_a_beam_chat_is_read(tmp_path: Path) -> None:
    turns = [
        {"role": "user", "id": 0, "time_anchor": "March-15-2024", "content": "Hello ->-> 1,1"},
        {"role": "assistant", "id": 1, "content": "Hi"},
        {"role": "user", "id": 2, "time_anchor": "March-20-2024", "content": "Later"},
    ]
    written(tmp_path / "A" / "chat.json", [{"turns": [turns]}])
    asked = {
        "information_extraction": [{"question": "When?", "source_chat_ids": {"first": [0]}}],
        "abstention": [{"question": "What?"}],
    }
    written(tmp_path / "A" / "probing_questions" / "probing_questions.json", asked)
    for path in (tmp_path / "A", tmp_path):
        chat = one(path)
        assert [(turn.key, turn.role, turn.text, turn.session) for turn in chat.turns] == [
            ("0", "user", "Hello", 0),
            ("1", "assistant", "Hi", 0),
            ("2", "user", "Later", 1),
        ]
        assert chat.turns[0].time.isoformat()[:10] == "2024-03-15"
        [question] = chat.questions
        assert (question.kind, set(question.evidence)) == ("information_extraction", {"0"})


def test_a_locomo_file_is_read(tmp_path: Path) -> None:
    item = {
        "sample_id": "conv-1",
        "conversation": {
            "session_1_date_time": "1:56 pm on 8 May, 2023",
            "session_1": [
                {"speaker": "Ann", "dia_id": "D1:1", "text": "Hey"},
                {"speaker": "Bob", "dia_id": "D1:2", "text": "Look", "blip_caption": "a cat"},
            ],
        },
        "qa": [
            {"question": "What?", "evidence": ["D1:1; D1:2"], "category": 1},
            {"question": "No evidence", "evidence": [], "category": 5},
        ],
    }
    chat = one(written(tmp_path / "locomo.json", [item]))
    assert [(turn.name, turn.role, turn.text) for turn in chat.turns] == [
        ("Ann", "user", "Hey"),
        ("Bob", "user", "Look [image: a cat]"),
    ]
    [question] = chat.questions
    assert (question.kind, set(question.evidence)) == ("multi-hop", {"D1:1", "D1:2"})


def test_a_longmemeval_file_is_read(tmp_path: Path) -> None:
    item = {
        "question_id": "q1",
        "question_type": "single-session-user",
        "question": "Where?",
        "question_date": "2023/05/30 (Tue) 23:40",
        "haystack_dates": ["2023/05/21 (Sun) 02:21", "2023/05/20 (Sat) 02:21"],
        "haystack_sessions": [
            [{"role": "user", "content": "later"}],
            [{"role": "user", "content": "earlier", "has_answer": True}],
        ],
    }
    unanswerable = {**item, "question_id": "q2", "haystack_sessions": [[], []]}
    chat = one(written(tmp_path / "longmemeval.json", [item, unanswerable]))
    assert [(turn.text, turn.session) for turn in chat.turns] == [("earlier", 1), ("later", 0)]
    assert chat.questions[0].evidence == {"1:0"}


def test_facts_are_read_and_other_files_refused(tmp_path: Path) -> None:
    facts = {"texts": ["a", "b"], "questions": [{"question": "?", "evidence": [1]}]}
    assert one(written(tmp_path / "facts.json", facts)).questions[0].evidence == {"1"}
    with pytest.raises(ValueError, match="unknown format"):
        list(load(written(tmp_path / "other.json", [{"x": 1}])))
    with pytest.raises(ValueError, match="not a folder of BEAM"):
        list(load(tmp_path))


def test_bm25_ranks_rare_words_first() -> None:
    texts = ["the cat sat", "the dog sat", "the dog and the zebra sat"]
    plain = Bm25([plain_words(text) for text in texts])
    assert plain.search(plain_words("sitting zebra"), 3) == [2]
    assert plain.search(plain_words("dogs"), 3) == [1, 2]


@pytest.mark.parametrize(
    ("language", "text", "words"),
    [
        ("en", "The horses were running", ["hors", "run"]),
        ("de", "Die Häuser und der Garten", ["haus", "gart"]),
        ("fr", "L'horloge des marchés", ["horlog", "march"]),
        ("es", "las canciones de los niños", ["cancion", "niñ"]),
        ("zh", "我的茶馆 v2", ["我的", "的茶", "茶馆", "v2"]),
        ("ja", "3月に魚", ["3", "月に", "に魚"]),
        ("en", "drain_node() fails", ["drain_nod", "fail"]),
    ],
)
def test_words_of_the_baseline_are_stems_without_stop_words(
    language: str, text: str, words: list[str]
) -> None:
    assert words_of(text, language) == words


def test_documents_of_the_baseline_contain_date_and_speaker() -> None:
    time = datetime(2025, 3, 9, tzinfo=UTC)
    turn = Turn("a", "user", "Hola", time, "Inés", 0, "es")
    assert document_of(turn) == ["doming", "9", "marz", "2025", "ines", "hol"]
    nameless = Turn("a", "assistant", "Hello", time)
    assert document_of(nameless) == ["sunday", "9", "march", "2025", "assist", "hello"]
    assert "3" in document_of(Turn("a", "user", "你好", time, language="zh"))


def chat_of(*questions: Question) -> Chat:
    """Returns a chat of three sessions with turns a to f."""
    turns = [
        Turn(key, "user", f"text {key}", datetime(2025, 1, 1, tzinfo=UTC), session=place // 2)
        for place, key in enumerate("abcdef")
    ]
    return Chat("chat", turns, questions)


def question_of(*evidence: str, outdated: str = "", kind: str = "fact") -> Question:
    asked = datetime(2025, 2, 1, tzinfo=UTC)
    return Question(kind, "?", frozenset(evidence), asked, outdated=frozenset(outdated))


def ranking_of(keys: str, chat: Chat) -> Ranking:
    return Ranking([*keys], [*keys], sessions_of([*keys], chat))


def test_rankings_are_scored_by_turn_and_by_session() -> None:
    chat = chat_of()
    scores = score(ranking_of("xaxxxxxxxbc", chat_with_x(chat)), question_of("a", "b", "c"), chat)
    assert (scores["recall@5"], scores["recall@10"]) == pytest.approx((1 / 3, 2 / 3))
    assert (scores["any@10"], scores["all@10"], scores["MRR"]) == (1.0, 0.0, 0.5)
    assert (scores["hit@1"], scores["hit@3"]) == (0.0, 1.0)
    scores = score(ranking_of("fa", chat), question_of("a", "c"), chat)
    assert (scores["session any@5"], scores["session recall@10"]) == (1.0, 0.5)
    assert score(ranking_of("", chat), question_of("a"), chat)["MRR"] == 0
    sessions_only = score(Ranking(None, (), [1]), question_of("c"), chat)
    assert sessions_only == dict.fromkeys(SESSION_METRICS, 1.0)


def chat_with_x(chat: Chat) -> Chat:
    turn = Turn("x", "user", "", datetime(2025, 1, 1, tzinfo=UTC), session=3)
    return replace(chat, turns=[*chat.turns, turn])


def test_newest_first_requires_the_newest_turn_before_every_outdated_one() -> None:
    chat = chat_of()
    question = question_of("e", outdated="ab")
    shares = [score(ranking_of(keys, chat), question, chat)[NEWEST_FIRST] for keys in ("cea", "ae")]
    assert shares == [1.0, 0.0]
    assert score(ranking_of("c", chat), question, chat)[NEWEST_FIRST] == 0.0
    assert NEWEST_FIRST not in score(ranking_of("c", chat), question_of("e"), chat)


def test_ranks_of_the_evidence_are_recorded() -> None:
    assert ranks(["x", "b"], {"a", "b"}) == {"a": None, "b": 2}


def test_the_overall_score_of_beam_covers_its_factual_types() -> None:
    chat = chat_of()
    factual, other = (
        Answer("BEAM", chat, question_of("a", kind=kind), "other words")
        for kind in ("knowledge_update", "event_ordering")
    )
    assert ALL in groups_of(factual)
    assert list(groups_of(other)) == ["type: event_ordering"]


def test_wording_is_classified_by_rare_words_only() -> None:
    time = datetime(2025, 1, 1, tzinfo=UTC)
    texts = ["The boat leaks", *["My boat is blue"] * 3, "A horse"]
    turns = [Turn(str(place), "user", text, time) for place, text in enumerate(texts)]
    baselines = ChatBaselines(Chat("chat", turns, []))

    def wording(text: str) -> str:
        return baselines.wording(Question("fact", text, frozenset("0"), time))

    assert wording("What leaked?") == "shared words"
    assert wording("Where is the boat?") == "other words"
    assert wording("Whose horse?") == "other words"
    answer = Question("fact", "What leaked?", frozenset("0"), time, needs_context=True)
    assert baselines.wording(answer) == "needs context"


def test_questions_are_grouped_by_language() -> None:
    chat = chat_of()
    asked = datetime(2025, 2, 1, tzinfo=UTC)

    def groups(language: str, about: str) -> set[str]:
        question = Question("fact", "?", frozenset("a"), asked, language, about)
        return {
            group
            for group in groups_of(Answer("short chats", chat, question, "other words"))
            if group.startswith("language")
        }

    assert groups("de", "de") == {"language: de", "languages: same, not English"}
    assert groups("en", "en") == {"language: en"}
    assert groups("en", "zh") == {"languages: different", "languages: English question"}
    assert groups("zh", "en") == {"languages: different", "languages: English text"}


def test_intervals_are_reproducible_and_contain_the_mean() -> None:
    low, high = bootstrap([0.0, 1.0] * 50)
    assert low < 0.5 < high
    assert (low, high) == bootstrap([0.0, 1.0] * 50)
    assert bootstrap([1.0] * 5) == (1.0, 1.0)


def test_evidence_is_scored_by_the_share_of_its_shown_sentences() -> None:
    time = datetime(2025, 1, 1, tzinfo=UTC)
    short = Turn("a", "user", 'She said "no"\nand left.', time)
    long = Turn("b", "user", "First part. Other part.", time)
    content, _ = pack("OK", {"results": [{"content": short.text}, "First part."]}, time, 1_000)
    result = shown(content, [short, long])
    assert result[SHOWN] == pytest.approx((1 + 0.5) / 2, abs=0.02)
    assert result[TOKENS] == -(-len(content.encode()) // 3.2)
    assert shown(content, [Turn("c", "user", "Neither.", time)])[SHOWN] == 0


def test_a_changed_chat_has_another_identity() -> None:
    chat = chat_of()
    moved = replace(chat.turns[0], time=datetime(2025, 1, 2, tzinfo=UTC))
    changed = replace(chat, turns=[moved, *chat.turns[1:]])
    other_questions = replace(chat, questions=[question_of("a")])
    assert identity_of(chat) == identity_of(other_questions)
    assert len({identity_of(one) for one in (chat, changed, replace(chat, name="b"))}) == 3


def test_a_run_can_be_limited() -> None:
    chats = [chat_of(), replace(chat_of(), name="other", half="calibration")]
    sets = {"short chats": chats, "BEAM": chats}
    whole = select(sets, (), None, reranker=False)
    assert (whole.sets, whole.methods, whole.floor) == (sets, [*METHODS, TOOL], True)
    part = select(sets, ("BEAM", "hybrid"), "calibration", reranker=False)
    assert (part.sets, part.methods, part.floor) == ({"BEAM": chats[1:]}, ["hybrid"], False)
    only_floor = select(sets, ("floor",), None, reranker=False)
    assert (only_floor.methods, only_floor.floor) == ([], True)
    with pytest.raises(ValueError, match="unknown: Hybrid; there are short chats, BEAM, hybrid"):
        select(sets, ("Hybrid",), None, reranker=False)


def test_a_reranker_adds_a_method_after_hybrid() -> None:
    plain = select({}, (), None, reranker=False).methods
    more = select({}, (), None, reranker=True).methods
    assert more[:2] == ["hybrid", "reranked"]
    assert [name for name in more if name != "reranked"] == plain
    chart = ET.fromstring(bars("t", {"all": dict.fromkeys(more, 0.5)}, more[:6]))
    colours = {element.get("fill") for element in chart.iter() if element.get("height") == "10"}
    assert len(colours) == 6
    right = [float(element.get("x", 0)) for element in chart.iter() if element.text in more]
    assert max(right) < 800  # the last name stays on the chart


def result_of(rank: int) -> Result:
    """Returns a result in which BM25 is better than hybrid; `rank` is that of hybrid."""
    result = Result(["hybrid", "BM25", TOOL])
    for half in ("calibration", "test"):
        question = question_of("a", kind="fact <1>")
        chat = replace(chat_of(question), half=half)
        for number in range(10):
            named = replace(chat, name=f"{half}{number}")
            answer = Answer("short chats", named, question, "other words")
            hybrid = ranking_of("bcdefx"[: rank - 1] + "a", chat_with_x(chat))
            for method, ranking in (("hybrid", hybrid), ("BM25", ranking_of("a", chat))):
                answer.scores[method] = score(ranking, question, chat)
                answer.ranks[method] = ranks(ranking.deep, question.evidence)
            answer.scores[TOOL] = {SHOWN: 0.5, TOKENS: 200.0}
            result.answers.append(answer)
    return result


def test_the_report_has_its_plots_and_separates_the_halves(tmp_path: Path) -> None:
    result = result_of(rank=1)
    result.answers[-1].scores["hybrid"]["recall@10"] = 0.0
    effect = FloorEffect(
        Counter(fact=40, topic=10),
        Counter(topic=2),
        Counter(words=10),
        Counter(words=9),
        Counter(words=1),
    )
    result.floors = {"short chats": {"calibration": effect, "test": effect}}
    result.seconds = {"hybrid": (0.01, 0.02)}
    result.write(tmp_path)
    result.save(tmp_path / "out.json")
    text = (tmp_path / "retrieval.md").read_text()
    [plot] = tmp_path.glob("*.svg")
    ET.fromstring(plot.read_text())
    assert f"({plot.name})" in text
    assert "| calibration (tuned on) | 10 | hybrid | 1.000 | 1.000 (1.000 to 1.000) |" in text
    assert "| test | 10 | hybrid | 1.000 | 0.900 (" in text
    assert "| short chats | all | 10 | recall@10 | 0.900 | 1.000 (BM25) |" in text
    assert "| short chats | test | 0.500 (0.500 to 0.500) | 200 | 2.500 |" in text
    floor = "2 of 50 (0.011 to 0.135) | 9 of 10 (0.596 to 0.982) | 1 |"
    assert f"| short chats | test | {floor}" in text
    data = json.loads((tmp_path / "out.json").read_text())
    assert data["figures"]["short chats"]["test"]["all"]["BM25"]["recall@10"] == 1.0
    assert data["answers"][0]["ranks"]["hybrid"] == {"a": 1}
    assert data["floors"]["short chats"]["test"]["lost"] == {"topic": 2}
    assert "&lt;" in bars("t", {"<": {"a": 0.5}}, ["a"])


def test_two_runs_are_compared_question_by_question(tmp_path: Path) -> None:
    for name, rank in (("old", 3), ("new", 1)):
        result_of(rank).save(tmp_path / f"{name}.json")
    old, new = (read(tmp_path / f"{name}.json") for name in ("old", "new"))
    lines = differences(old, new)
    assert lines[0] == "20 questions in both runs, 0 only in the new one"
    gain = "0.000 -> 1.000, +1.000 (+1.000 to +1.000)"
    assert f"short chats | test | hybrid | hit@1: {gain}" in lines
    assert not any("MRR" in line for line in lines)


def test_the_chat_used_for_calibration_is_separated_from_the_test_chats(tmp_path: Path) -> None:
    for name in ("100K-1", "100K-2"):
        written(tmp_path / name / "chat.json", [])
        written(tmp_path / name / "probing_questions" / "probing_questions.json", {})
    chats = [*load(tmp_path), Chat("other", [], [])]
    named = {half: [chat.name for chat in part] for half, part in halves(chats).items()}
    assert named == {"calibration": ["100K-1"], "test": ["100K-2", "other"]}
    assert list(halves(chats[1:])) == ["test"]


def test_the_halves_of_the_shipped_queries_are_disjoint() -> None:
    sets = relevance_sets()
    calibration, test = sets["calibration"], sets["test"]
    for half in (calibration, test):
        turns = half.texts.turns
        assert {key for question in half.texts.questions for key in question.evidence} <= {
            turn.key for turn in turns
        }
        assert half.few.turns == turns[:FEW]
        assert half.few.name != half.texts.name
    texts, queries = (
        [{turn.text for turn in half.texts.turns} for half in (calibration, test)],
        [
            {question for kind in half.off_topic.values() for question in kind}
            for half in (calibration, test)
        ],
    )
    assert texts[0].isdisjoint(texts[1])
    assert queries[0].isdisjoint(queries[1])
    assert calibration.off_topic.keys() == test.off_topic.keys()


@pytest.mark.parametrize(
    ("part", "whole", "low", "high"),
    [(0, 0, 0, 1), (0, 100, 0, 0.037), (100, 100, 0.963, 1), (50, 100, 0.404, 0.596)],
)
def test_intervals_of_shares_are_wilson_intervals(
    part: int, whole: int, low: float, high: float
) -> None:
    assert interval(part, whole) == pytest.approx((low, high), abs=0.0005)
