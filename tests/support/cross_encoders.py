"""Writes small cross-encoder models with known scores, as exported folders.

They are real ONNX models that count the tokens which a text has in common with the question.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper, save

from strata.shared.search.reranking.cross_encoder import CrossEncoder
from strata.shared.search.reranking.result_order import Reranking
from strata.shared.telemetry import Telemetry

VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
"""The ids of the words begin after these, so that they differ from the published vocabulary."""
BREAKS = "breakage"
"""A question with this word makes a model of `export_breaking` fail."""
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def export(folder: Path, words: str | Sequence[str], *, max_tokens: int = 64) -> Path:
    """Writes a model with this vocabulary.

    Its score is the number of pairs of equal tokens of question and text.
    """
    tokens = write_vocabulary(folder, words)
    nodes, constants = counting(tokens)
    write_model(folder, nodes, constants)
    write_config(folder, max_position_embeddings=max_tokens)
    return folder


def export_breaking(folder: Path, words: str | Sequence[str], *, nan: bool = False) -> Path:
    """Writes a model that fails, or returns NaN, for questions with the word `BREAKS`."""
    tokens = write_vocabulary(folder, [BREAKS, *_split(words)])
    nodes, constants = counting(tokens, output="counted")
    nodes += [
        node("Equal", ["input_ids", "breaks"], "is_break"),
        node("Cast", ["is_break"], "break_float", to=TensorProto.FLOAT),
        node("ReduceMax", ["break_float"], "broken", keepdims=0),
    ]
    constants += [constant("breaks", np.array(tokens.index(BREAKS), np.int64))]
    if nan:
        nodes += [
            node("Sub", ["one", "broken"], "whole"),
            node("Div", ["whole", "whole"], "one_or_nan"),
            node("Mul", ["counted", "one_or_nan"], "logits"),
        ]
    else:  # a position that the table does not have
        nodes += [
            node("Cast", ["broken"], "place", to=TensorProto.INT64),
            node("Gather", ["table", "place"], "row"),
            node("Mul", ["counted", "row"], "logits"),
        ]
        constants += [constant("table", np.ones(1, np.float32))]
    write_model(folder, nodes, constants)
    write_config(folder)
    return folder


def export_slow(folder: Path, words: str | Sequence[str], *, rounds: int = 80) -> Path:
    """Writes a model that computes for several hundred milliseconds per pair."""
    tokens = write_vocabulary(folder, words)
    nodes, constants = counting(tokens, output="counted")
    size = 512
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["on"], ["on_out"]),
            helper.make_node("MatMul", ["state", "square"], ["state_out"]),
        ],
        "round",
        [
            helper.make_tensor_value_info("number", TensorProto.INT64, []),
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [size, size]),
        ],
        [
            helper.make_tensor_value_info("on_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state_out", TensorProto.FLOAT, [size, size]),
        ],
    )
    nodes += [
        # Computed from the input, so that it is not precomputed when the model is opened.
        node("ReduceMax", ["attention_float"], "some", keepdims=0),
        node("Mul", ["square", "some"], "start"),
        helper.make_node("Loop", ["rounds", "yes", "start"], ["end"], body=body),
        node("ReduceMax", ["end"], "largest", keepdims=0),
        node("Mul", ["largest", "zero"], "nothing"),
        node("Add", ["counted", "nothing"], "logits"),
    ]
    constants += [
        constant("square", np.eye(size, dtype=np.float32)),
        constant("rounds", np.array(rounds, np.int64)),
        constant("yes", np.array(True)),
        constant("zero", np.array(0, np.float32)),
    ]
    write_model(folder, nodes, constants)
    write_config(folder)
    return folder


def overlap(query: str, text: str) -> int:
    """Returns the score of the models for known words and texts that are not truncated."""
    return sum(left == right for left in _split(query) for right in _split(text))


def write_vocabulary(folder: Path, words: str | Sequence[str]) -> list[str]:
    """Writes ``vocab.txt``; returns the tokens by id."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = list(dict.fromkeys([*VOCABULARY, *_split(words)]))
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens), "utf-8")
    return tokens


def write_config(folder: Path, **config: Any) -> None:
    """Writes the configuration files as `optimum` does."""
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 64} | config))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"do_lower_case": True, "model_max_length": 1e30, "strip_accents": None})
    )


def counting(tokens: Sequence[str], output: str = "logits") -> tuple[list[Any], list[Any]]:
    """Returns nodes and constants that count pairs of equal tokens, without markers."""
    nodes = [
        node("Cast", ["token_type_ids"], "second", to=TensorProto.FLOAT),
        node("Cast", ["attention_mask"], "attention_float", to=TensorProto.FLOAT),
        node("Sub", ["one", "second"], "first"),
        # Markers have the first ids.
        node("GreaterOrEqual", ["input_ids", "words_from"], "is_word"),
        node("Cast", ["is_word"], "word", to=TensorProto.FLOAT),
        node("Mul", ["word", "attention_float"], "counts"),
        node("Mul", ["first", "counts"], "of_first"),
        node("Mul", ["second", "counts"], "of_second"),
        node("Unsqueeze", ["input_ids", "axis_1"], "across"),
        node("Unsqueeze", ["input_ids", "axis_2"], "down"),
        node("Equal", ["down", "across"], "same"),
        node("Cast", ["same"], "same_float", to=TensorProto.FLOAT),
        node("Unsqueeze", ["of_first", "axis_2"], "first_down"),
        node("Unsqueeze", ["of_second", "axis_1"], "second_across"),
        node("Mul", ["same_float", "first_down"], "masked"),
        node("Mul", ["masked", "second_across"], "pairs"),
        node("ReduceSum", ["pairs", "axes"], "sums", keepdims=0),
        node("Unsqueeze", ["sums", "axis_1"], output),
    ]
    constants = [
        constant("one", np.array(1, np.float32)),
        constant("words_from", np.array(len(VOCABULARY), np.int64)),
        constant("axis_1", np.array([1], np.int64)),
        constant("axis_2", np.array([2], np.int64)),
        constant("axes", np.array([1, 2], np.int64)),
    ]
    return nodes, constants


def node(kind: str, inputs: list[str], output: str, **attributes: Any) -> Any:
    """One node of a graph."""
    return helper.make_node(kind, inputs, [output], **attributes)


def constant(name: str, value: Any) -> Any:
    """One constant of a graph."""
    return numpy_helper.from_array(value, name)


def write_model(
    folder: Path,
    nodes: Sequence[Any],
    constants: Sequence[Any],
    *,
    inputs: Sequence[str] = _INPUTS,
    length: int | str = "sequence",
    name: str = "model.onnx",
) -> None:
    """Writes the weights."""
    graph = helper.make_graph(
        nodes,
        "cross-encoder",
        [
            helper.make_tensor_value_info(input_, TensorProto.INT64, ["batch", length])
            for input_ in inputs
        ],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "scores"])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    checker.check_model(model)
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    save(model, str(folder / name))


def _split(words: str | Sequence[str]) -> list[str]:
    """Returns the words in lower case, like the tokenizer."""
    text = words if isinstance(words, str) else " ".join(words)
    return re.findall(r"\w+|[^\w\s]", text.lower())


@asynccontextmanager
async def reranking_with(
    folder: Path,
    *,
    candidates: int = 30,
    budget: float = 60,
    telemetry: Telemetry | None = None,
) -> AsyncIterator[Reranking]:
    """Inside the block, searches rerank their results with the model of a folder."""
    model = await CrossEncoder.load(folder)
    try:
        yield Reranking(model, candidates=candidates, budget=budget, telemetry=telemetry)
    finally:
        await model.close()
