"""Makes the centres and the projection of the multilingual embedding model.

    .venv/bin/python tests/data/embedding/make_projection.py

They are computed from 60 facts and questions in six languages (``facts.json``, written for this
project) and from words of the transformer's vocabulary. The projection keeps the 384 principal
directions of the joined vectors. The mean of the words as queries is subtracted from short queries,
that of words of scripts without spaces from queries in these.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import cast

import numpy as np
import numpy.typing as npt

from strata.shared.search.embedding import e5
from strata.shared.search.embedding.base import MULTILINGUAL_DIM, Kind
from strata.shared.search.embedding.e5 import E5Model
from strata.shared.search.embedding.sentence_encoder import SentenceEncoder

FILE = Path(e5.__file__).parent / "data" / "multilingual.npz"
_WORDS = 2_500
_UNSPACED_WORDS = 800
_FACT_WEIGHT = 2
_Floats = npt.NDArray[np.float32]


def unit(vectors: _Floats) -> _Floats:
    """Returns the rows, scaled to length 1."""
    result: _Floats = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return result


def vocabulary_words(pieces: list[str]) -> list[str]:
    """Returns words of the vocabulary, the same in every run."""
    random = Random(5)
    spaced = [piece[1:] for piece in pieces if piece.startswith("\u2581") and len(piece) > 5]
    unspaced = [
        piece
        for piece in pieces
        if len(piece) > 1 and all("\u3040" < char < "\u9fff" for char in piece)
    ]
    return random.sample(spaced, _WORDS) + random.sample(unspaced, _UNSPACED_WORDS)


def main() -> None:
    """Writes the file."""
    transformer = E5Model.load()
    encoder = SentenceEncoder.load()

    def embed(texts: list[str], kind: Kind) -> tuple[_Floats, _Floats]:
        prefix = transformer.tokenizer.tokenize("query:" if kind == "query" else "passage:")
        tokens, others = transformer.tokenizer.tokenize, encoder.tokenizer.tokenize
        return (
            np.stack([transformer.embed([*prefix, *tokens(text)]) for text in texts]),
            np.stack([encoder.embed(others(text)) for text in texts]),
        )

    def joined(parts: tuple[_Floats, _Floats], centers: tuple[_Floats, _Floats]) -> _Floats:
        return np.concatenate(
            [unit(part - center) for part, center in zip(parts, centers, strict=True)], axis=1
        )

    facts = json.loads(Path(__file__).with_name("facts.json").read_text(encoding="utf-8"))
    stored: dict[str, npt.NDArray[np.generic]] = {}
    samples = []
    for place, kind in enumerate(("document", "query")):
        texts = [pair[place] for fact in facts for pair in fact]
        parts = embed(texts, cast("Kind", kind))
        centers = parts[0].mean(axis=0), parts[1].mean(axis=0)
        stored[f"transformer_{kind}"], stored[f"encoder_{kind}"] = centers
        samples += [joined(parts, centers)] * _FACT_WEIGHT
    words = vocabulary_words(e5.pieces(e5.WEIGHTS.checked()))
    parts = embed(words, "document")
    samples.append(joined(parts, (parts[0].mean(axis=0), parts[1].mean(axis=0))))
    sample = np.concatenate(samples)
    _, directions = np.linalg.eigh(sample.T @ sample / len(sample))
    projection = directions[:, ::-1][:, :MULTILINGUAL_DIM].astype(np.float16)
    stored["projection"] = projection
    # The centres of the last kind are those of queries.
    vectors = unit(joined(embed(words, "query"), centers) @ projection.astype(np.float32))
    stored["short_query"] = vectors.mean(axis=0)
    stored["short_unspaced_query"] = vectors[_WORDS:].mean(axis=0)
    np.savez(FILE, allow_pickle=False, **stored)


if __name__ == "__main__":
    main()
