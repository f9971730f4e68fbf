"""The committed graphs are those that their script makes; sessions copy the weights."""

import importlib.util
from importlib import resources
from pathlib import Path

import numpy as np

from strata.shared.search.embedding import sentence_encoder
from strata.shared.search.embedding.onnx_session import open_graph

SCRIPT = Path(__file__).parents[3] / "data/embedding/make_graphs.py"


def test_the_graphs_are_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("make_graphs", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    for name, content in script.graphs().items():
        assert (script.FOLDER / name).read_bytes() == content, f"run {SCRIPT.name}"


def test_a_session_copies_the_weights_that_it_is_opened_with() -> None:
    """They are released after the session was opened."""
    weights = {
        name.removeprefix("weight."): np.array(value)
        for name, value in sentence_encoder.load_arrays().arrays.items()
        if name.startswith("weight.")
    }
    graph = resources.files("strata.shared.search.embedding") / "data/sentence_encoder.onnx"
    session = open_graph(graph.read_bytes(), weights)
    inputs = {"embeddings": np.ones((5, sentence_encoder.DIM), np.float32)}
    [before] = session.run(None, inputs)
    for value in weights.values():
        value[...] = 0
    [after] = session.run(None, inputs)
    assert before.any()
    assert np.array_equal(before, after)
