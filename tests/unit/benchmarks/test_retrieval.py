"""The benchmark of search: what it reads and how it counts."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from benchmarks.retrieval.__main__ import methods_of
from benchmarks.retrieval.baselines import Bm25, substring
from benchmarks.retrieval.datasets import Chat, halves, load
from benchmarks.retrieval.floor import FEW, FloorEffect, relevance_sets
from benchmarks.retrieval.plots import bars
from benchmarks.retrieval.report import Result
from benchmarks.retrieval.scoring import ALL, by_kind, interval, score


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


def test_bm25_finds_rare_words_first_and_substrings_are_literal() -> None:
    texts = ["the cat sat", "the dog sat", "the dog and the zebra sat"]
    assert Bm25(texts).search("sitting zebra", 3) == [2]
    assert Bm25(texts).search("dogs", 3) == [1, 2]
    assert substring(texts, "DOG", 3) == [2, 1]
    assert substring(texts, "dog zebra", 3) == []


def test_a_ranking_is_scored() -> None:
    results = ["x", "a", *"mnopqr", "b", "c"]
    result = score(results, {"a", "b", "z"})
    assert (result.recall_5, result.recall_10) == pytest.approx((1 / 3, 2 / 3))
    assert (result.any_10, result.all_10, result.mrr) == (1.0, 0.0, 0.5)
    assert score([], {"a"}).mrr == 0


def test_the_headline_is_of_its_types_only() -> None:
    good, bad = score(["a"], {"a"}), score([], {"a"})
    means = by_kind({"fact": [good, good], "order": [bad]}, ["fact"])
    assert (means[ALL].recall_10, means["order"].recall_10) == (1.0, 0.0)
    assert means[ALL].questions == 2
    assert by_kind({"order": [bad, good]}, ["fact"])[ALL].recall_10 == 0.5


def test_a_reranker_adds_a_method_beside_hybrid(tmp_path: Path) -> None:
    plain, more = methods_of(None), methods_of(tmp_path)
    assert more[:2] == ("hybrid", "reranked")
    assert tuple(name for name in more if name != "reranked") == plain
    chart = ET.fromstring(bars("t", {"all": dict.fromkeys(more, 0.5)}, more))
    colours = {element.get("fill") for element in chart.iter() if element.get("height") == "10"}
    assert len(colours) == len(more)
    right = [float(element.get("x", 0)) for element in chart.iter() if element.text in more]
    assert max(right) < 800  # the last name stays on the chart


def test_the_report_has_its_plots(tmp_path: Path) -> None:
    scores = by_kind({"fact <1>": [score(["a"], {"a"})]}, [])
    result = Result({"Set": {"hybrid": scores, "BM25": scores}}, {"hybrid": (0.01, 0.02)})
    effect = FloorEffect(
        Counter(fact=40, topic=10),
        Counter(topic=2),
        Counter(words=10),
        Counter(words=9),
        Counter(words=1),
    )
    result.floors = {"Set": {"calibration": effect, "test": effect}}
    result.write(tmp_path, ["hybrid", "BM25"], [])
    result.save(tmp_path / "out.json")
    text = (tmp_path / "retrieval.md").read_text()
    for plot in tmp_path.glob("*.svg"):
        ET.fromstring(plot.read_text())
        assert plot.name in text
    assert len(list(tmp_path.glob("*.svg"))) == 2
    assert "| Set | calibration (chosen on it) | all | 50 | 2 | 0.040 (0.011 to 0.135) |" in text
    assert "| Set | test | topic | 10 | 2 | 0.200 (0.057 to 0.510) |" in text
    assert "| Set | test | words | 10 | 9 | 0.900 (0.596 to 0.982) | 1 |" in text
    data = json.loads((tmp_path / "out.json").read_text())
    assert data["scores"]["Set"]["BM25"]
    assert data["floors"]["Set"]["test"]["lost"] == {"topic": 2}
    assert "&lt;" in bars("t", {"<": {"a": 0.5}}, ["a"])


def test_the_chats_that_the_floor_was_chosen_on_are_kept_apart(tmp_path: Path) -> None:
    for name in ("100K-1", "100K-2"):
        written(tmp_path / name / "chat.json", [])
        written(tmp_path / name / "probing_questions" / "probing_questions.json", {})
    chats = [*load(tmp_path), Chat("other", [], [])]
    named = {half: [chat.name for chat in part] for half, part in halves(chats).items()}
    assert named == {"calibration": ["100K-1"], "test": ["100K-2", "other"]}
    assert list(halves(chats[1:])) == ["test"]


def test_the_halves_of_the_shipped_queries_share_nothing() -> None:
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
def test_a_share_has_wilsons_interval(part: int, whole: int, low: float, high: float) -> None:
    assert interval(part, whole) == pytest.approx((low, high), abs=0.0005)
