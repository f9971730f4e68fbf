"""Loads the default embedding model once for all services of a test process.

A start of the services of a module takes 0.2 s of CPU time to load the model again. Loaded weights
do not change, and any number of threads may use them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from strata.shared.search.embedding.e5 import E5Model
from strata.shared.search.embedding.sentence_encoder import SentenceEncoder


def install() -> None:
    """Makes the embedders of this process share the weights and the sessions of their models."""
    for model in (E5Model, SentenceEncoder):
        shared: Any = model
        shared.load = staticmethod(cache(model.load))
