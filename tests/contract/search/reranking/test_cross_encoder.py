"""Real models of ONNX Runtime whose scores are known."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto

import cross_encoders
from cross_encoders import constant, counting, export, node, overlap, write_config, write_model
from loop_watch import counted_turns
from strata.protocol.errors import FailedPreconditionError, Reason
from strata.recall.settings import RecallSettings
from strata.shared.search.reranking import Reranker, factory
from strata.shared.search.reranking.cross_encoder import CrossEncoder
from strata.shared.search.reranking.factory import open_reranking
from strata.shared.search.reranking.result_order import Reranking
from strata.shared.search.result_merge import ResultRank
from strata.shared.shared_resources import SharedResources
from strata.shared.telemetry import Telemetry

WORDS = "who is called nora the boat a cat sleeps on red sofa and"
SENTENCES = st.lists(st.sampled_from(WORDS.split()), max_size=12).map(" ".join)


@pytest.fixture
async def counter(stack: AsyncExitStack, tmp_path: Path) -> CrossEncoder:
    return await opened(stack, export(tmp_path / "counter", WORDS))


async def opened(stack: AsyncExitStack, folder: Path, sha256: str = "") -> CrossEncoder:
    model = await CrossEncoder.load(folder, sha256=sha256)
    stack.push_async_callback(model.close)
    return model


async def test_question_and_text_are_read_together(stack: AsyncExitStack, tmp_path: Path) -> None:
    model = await opened(stack, export(tmp_path / "counting", WORDS))
    assert isinstance(model, Reranker)
    texts = ["The boat is called Nora.", "The cat sleeps.", "", "Nothing known", "boat, boat!"]
    scores = await model.score("Who is called Nora?", texts)
    assert scores == [3.0, 0.0, 0.0, 0.0, 0.0]
    assert await model.score("the boat", texts) == [2.0, 1.0, 0.0, 0.0, 2.0]
    assert await model.score("the boat", []) == []
    digest = hashlib.sha256((tmp_path / "counting" / "model.onnx").read_bytes()).hexdigest()
    assert model.model_id == f"counting@{digest[:12]}"


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(SENTENCES, max_size=11), SENTENCES)
async def test_a_score_depends_only_on_the_query_and_the_text(
    counter: CrossEncoder, texts: list[str], query: str
) -> None:
    scores = await counter.score(query, texts)
    assert scores == [overlap(query, text) for text in texts]
    assert scores == [(await counter.score(query, [text]))[0] for text in texts]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(SENTENCES, max_size=11), SENTENCES, st.integers(min_value=1, max_value=12))
async def test_the_candidates_are_permuted_by_their_scores(
    counter: CrossEncoder, texts: list[str], query: str, candidates: int
) -> None:
    results = [(n, ResultRank("hybrid", 1 - n / 100, n + 1, None)) for n in range(len(texts))]
    made = Reranking(counter, candidates=candidates, budget=60)
    ranked, _ = await made.order(query, results, lambda n: texts[n])
    given_to_it, rest = range(len(texts))[:candidates], range(len(texts))[candidates:]
    best = sorted(given_to_it, key=lambda n: -overlap(query, texts[n]))
    assert [result.item for result in ranked] == [*best, *rest]


async def test_a_pair_is_truncated_to_the_input_of_the_model(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    model = await opened(stack, export(tmp_path, WORDS, max_tokens=16))
    assert model.max_tokens == 16
    # Of 16 tokens three are markers and one belongs to the question.
    assert await model.score("boat", ["boat " * 12, "boat " * 50]) == [12.0, 12.0]
    # A long question leaves half of the space to the text, and more if the text needs less.
    assert await model.score("boat " * 50, ["cat " * 50, "boat " * 50]) == [0.0, 42.0]
    assert await model.score("cat " * 9 + "boat", ["boat"]) == [1.0]


async def test_of_a_long_text_the_passage_with_most_words_of_the_query_is_scored(
    stack: AsyncExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = export(tmp_path, WORDS, max_tokens=512)
    monkeypatch.setattr(factory, "TEXT_TOKENS", 16)
    made = RecallSettings(reranker_path=folder, reranker_budget_ms=60_000)
    reranking = await open_reranking(made, SharedResources(), Telemetry(), stack)
    filler = "a cat sleeps on the sofa and " * 40
    texts = [f"{filler} the boat is called nora {filler}", f"boat {filler}", filler]
    results = [(text, ResultRank("fts", 0.5, None, 1)) for text in reversed(texts)]
    ranked, _ = await reranking.order("who is called nora", results, str)
    assert ranked[0].item == texts[0]
    assert [result.score for result in ranked] == [3.0, 0.0, 0.0]
    # A longer part would have both words; sixteen tokens have one.
    between = "a cat sleeps on the sofa and " * 6
    both = f"red {between} nora"
    ranked, _ = await reranking.order("red nora", [(both, results[0][1])], str)
    assert ranked[0].score == 1.0


async def test_files_are_found_where_exports_put_them(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    folder = export(tmp_path / "hub", WORDS)
    tokens = (folder / "vocab.txt").read_text().split()
    (folder / "vocab.txt").unlink()
    ids = {token: number for number, token in enumerate(tokens)}
    normalizer = {"type": "BertNormalizer", "lowercase": True, "strip_accents": None}
    tokenizer = {"model": {"type": "WordPiece", "vocab": ids}, "normalizer": normalizer}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "onnx").mkdir()
    (folder / "model.onnx").rename(folder / "onnx" / "model.onnx")
    digest = hashlib.sha256((folder / "onnx" / "model.onnx").read_bytes()).hexdigest()
    model = await opened(stack, folder, sha256=digest.upper())
    assert await model.score("red cat", ["a red cat"]) == [2.0]


async def test_a_model_without_segment_ids_is_run_without_them(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    cross_encoders.write_vocabulary(tmp_path, WORDS)
    write_config(tmp_path)
    nodes = [
        node("Cast", ["attention_mask"], "read", to=TensorProto.FLOAT),
        node("Cast", ["input_ids"], "ids", to=TensorProto.FLOAT),
        node("Mul", ["read", "ids"], "masked"),
        node("ReduceMax", ["masked"], "logits", axes=[1], keepdims=1),
    ]
    write_model(tmp_path, nodes, [], inputs=("input_ids", "attention_mask"))
    model = await opened(stack, tmp_path)
    last = len((tmp_path / "vocab.txt").read_text().split()) - 1
    assert await model.score("who", ["and"]) == [last]


async def test_scoring_does_not_block_the_event_loop(stack: AsyncExitStack, tmp_path: Path) -> None:
    model = await opened(stack, cross_encoders.export_slow(tmp_path, WORDS))
    async with counted_turns() as turns:
        assert await model.score("red cat", ["a red cat"]) == [2.0]
        assert turns() > 8


async def test_one_search_is_scored_after_the_other(counter: CrossEncoder) -> None:
    done: list[str] = []

    async def score(name: str, texts: list[str]) -> None:
        await counter.score("cat", texts)
        done.append(name)

    # Under load some end in time, and not all of them late.
    await asyncio.gather(score("long", ["a cat"] * 100), score("short", ["a cat"]))
    assert done == ["long", "short"]


async def test_a_cancelled_search_frees_the_model(stack: AsyncExitStack, tmp_path: Path) -> None:
    model = await opened(stack, cross_encoders.export_slow(tmp_path, WORDS))
    long = asyncio.create_task(model.score("cat", ["a cat"] * 10_000))
    await asyncio.sleep(0.05)
    waiting = asyncio.create_task(model.score("cat", ["a red cat"]))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    long.cancel()
    # Ten thousand of them would take half an hour.
    async with asyncio.timeout(60):
        assert await waiting == [1.0]


async def test_services_of_a_process_share_one_model(stack: AsyncExitStack, tmp_path: Path) -> None:
    made = RecallSettings(
        reranker_path=export(tmp_path, WORDS), reranker_candidates=2, reranker_budget_ms=60_000
    )
    shared_resources, telemetry = SharedResources(), Telemetry()
    first, second = [
        await open_reranking(made, shared_resources, telemetry, stack) for _ in range(2)
    ]
    assert first._reranker is second._reranker
    assert first.depth(1) == 2
    results = [
        (text, ResultRank("fts", 0.5, None, 1)) for text in ("a cat", "red cat", "red red cat")
    ]
    ranked, report = await first.order("red cat", results, str)
    assert [result.item for result in ranked] == ["red cat", "a cat", "red red cat"]
    assert report is not None
    assert (report.candidates, report.outcome.value) == (2, "done")


async def test_by_default_there_is_no_reranker(stack: AsyncExitStack) -> None:
    off = await open_reranking(RecallSettings(), SharedResources(), Telemetry(), stack)
    assert off.depth(5) == 5


def _no_folder(folder: Path) -> None:
    (folder / "vocab.txt").unlink()
    (folder / "model.onnx").unlink()
    for name in ("config.json", "tokenizer_config.json"):
        (folder / name).unlink()
    folder.rmdir()


def _tokenizer(folder: Path, **rules: object) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(rules))


def _gaps(folder: Path) -> None:
    (folder / "vocab.txt").unlink()
    _tokenizer(folder, model={"type": "WordPiece", "vocab": {"[UNK]": 0, "a": 2}})


def _two_scores(folder: Path) -> None:
    nodes, constants = counting(["x"], output="one_score")
    nodes.append(node("Concat", ["one_score", "one_score"], "logits", axis=1))
    write_model(folder, nodes, constants)


def _smaller_table(folder: Path) -> None:
    nodes, constants = counting(["x"], output="counted")
    nodes += [
        node("Gather", ["table", "input_ids"], "rows"),
        node("ReduceMax", ["rows"], "row", axes=[1], keepdims=1),
        node("Mul", ["counted", "row"], "logits"),
    ]
    table = constant("table", np.ones(len(WORDS.split()) + 3, np.float32))
    write_model(folder, nodes, [*constants, table])


def _no_number(folder: Path) -> None:
    nodes, constants = counting(["x"], output="counted")
    nodes += [
        node("Sub", ["counted", "counted"], "nothing"),
        node("Div", ["nothing", "nothing"], "logits"),
    ]
    write_model(folder, nodes, constants)


def _fixed_length(folder: Path) -> None:
    nodes, constants = counting(["x"])
    write_model(folder, nodes, constants, length=16)


def _other_inputs(folder: Path) -> None:
    nodes, constants = counting(["x"])
    names = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
    write_model(folder, nodes, constants, inputs=names)


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (_no_folder, "there is no such folder"),
    "no weights": (lambda folder: (folder / "model.onnx").unlink(), "there is no model.onnx"),
    "no model": (lambda folder: (folder / "model.onnx").write_bytes(b"hello"), "is not a model"),
    "no vocabulary": (lambda folder: (folder / "vocab.txt").unlink(), "there is no vocab.txt"),
    "another vocabulary": (
        lambda folder: (folder / "vocab.txt").write_text("a\nb\n"),
        r"its vocabulary has no \[UNK\]",
    ),
    "binary vocabulary": (
        lambda folder: (folder / "vocab.txt").write_bytes(b"\xff\xfe"),
        "vocab.txt cannot be read",
    ),
    "a vocabulary with gaps": (_gaps, "has gaps"),
    "another tokenizer": (
        lambda folder: _tokenizer(folder, model={"type": "Unigram"}),
        "its tokenizer is Unigram",
    ),
    "a cased model": (
        lambda folder: (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}'),
        "do_lower_case = False",
    ),
    "a cased normalizer": (
        lambda folder: _tokenizer(folder, normalizer={"lowercase": False}),
        "lowercase = False",
    ),
    "accents": (
        lambda folder: _tokenizer(folder, normalizer={"strip_accents": False}),
        "keeps accents",
    ),
    "broken settings": (
        lambda folder: (folder / "config.json").write_text("{"),
        "config.json cannot be read",
    ),
    "a list of settings": (
        lambda folder: (folder / "config.json").write_text("[]"),
        "config.json is not an object",
    ),
    "too few tokens": (
        lambda folder: write_config(folder, max_position_embeddings=4),
        "it reads 4 tokens",
    ),
    "two scores": (_two_scores, "it returns 2 numbers for a pair"),
    "a smaller table of tokens": (_smaller_table, "it fails for a pair of 4 tokens"),
    "no number": (_no_number, "is not a finite number"),
    "one length": (_fixed_length, "it fails for a pair of 4 tokens"),
    "other inputs": (_other_inputs, "its inputs are .*position_ids"),
}


@pytest.mark.parametrize("what", BROKEN)
async def test_a_folder_that_cannot_be_used_is_refused_at_the_start(
    tmp_path: Path, what: str
) -> None:
    breaking, why = BROKEN[what]
    folder = export(tmp_path / "model", WORDS)
    breaking(folder)
    made = RecallSettings(reranker_path=folder)
    async with AsyncExitStack() as stack:
        with pytest.raises(FailedPreconditionError, match=why) as caught:
            await open_reranking(made, SharedResources(), Telemetry(), stack)
    assert caught.value.reason is Reason.MODEL_NOT_CONFIGURED
    assert caught.value.metadata["path"] == str(folder)
    assert str(folder) in caught.value.message


async def test_weights_with_another_checksum_are_refused(tmp_path: Path) -> None:
    folder = export(tmp_path, WORDS)
    with pytest.raises(FailedPreconditionError, match=f"expected {'0' * 64}"):
        await CrossEncoder.load(folder, sha256="0" * 64)
