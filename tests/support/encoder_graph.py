"""The graph of the sentence encoder, and its weights, for tests of sessions of ONNX Runtime."""

from __future__ import annotations

from importlib import resources

import numpy as np

from strata.shared.search.embedding import sentence_encoder
from strata.shared.search.embedding.onnx_session import weights_in
from strata.shared.search.embedding.prepared_arrays import Arrays

GRAPH = (
    resources.files("strata.shared.search.embedding") / "data/sentence_encoder.onnx"
).read_bytes()
SAMPLE = {
    "embeddings": np.linspace(-1, 1, 3 * sentence_encoder.DIM, dtype=np.float32).reshape(3, -1)
}
"""Inputs of the graph: a text of one token, with its markers."""


class Weights:
    """Returns the weights, and counts how often they are read."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> Arrays:
        self.count += 1
        return weights_in(sentence_encoder.load_arrays().arrays)
