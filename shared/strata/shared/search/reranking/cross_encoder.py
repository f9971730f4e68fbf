"""A cross-encoder: a model that scores a question and a text together, by ONNX Runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from strata.shared import heap_trim
from strata.shared.search.embedding.onnx_session import open_session
from strata.shared.search.embedding.wordpiece import WordPieceTokenizer
from strata.shared.search.reranking.base import TEXT_TOKENS
from strata.shared.search.reranking.model_folder import ModelFolder, read_folder, refused
from strata.shared.search.reranking.passage_window import fit_pair

# Pairs scored per job of the thread; at most this many are computed in vain when time runs out.
_BATCH = 4
_REQUIRED = {"input_ids", "attention_mask"}
_KNOWN = _REQUIRED | {"token_type_ids"}
_ID_DIGITS = 12
# The markers of a pair.
_MARKERS = 3
# Longer texts are truncated, because searching a whole book for its best part takes too long.
_LONGEST_TEXT = 8192


class CrossEncoder:
    """A reranker that runs a BERT cross-encoder with one score, such as ms-marco-MiniLM.

    Searches are scored one after the other, so that under load some finish in time instead of none.
    Create it with `load`.
    """

    def __init__(
        self,
        name: str,
        folder: ModelFolder,
        session: ort.InferenceSession,
        executor: ThreadPoolExecutor,
        text_tokens: int,
    ) -> None:
        self._model_id = f"{name}@{folder.sha256[:_ID_DIGITS]}"
        self._max_tokens = folder.max_tokens
        self._text_tokens = text_tokens
        self._session = session
        self._executor = executor
        self._tokenizer = WordPieceTokenizer(folder.vocabulary)
        self._inputs = {tensor.name for tensor in session.get_inputs()}
        self._turn = asyncio.Lock()

    @classmethod
    async def load(
        cls, folder: Path, *, sha256: str = "", text_tokens: int = TEXT_TOKENS
    ) -> CrossEncoder:
        """Opens the model and tests it with a short and a long pair.

        Args:
            folder: See `read_folder`.
            sha256: See `read_folder`.
            text_tokens: Maximum number of tokens of a text that are read; see `fit_pair`.

        Raises:
            FailedPreconditionError: ``MODEL_NOT_CONFIGURED``: the folder has no model that can be
                run here.
        """
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reranking")
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(
                executor, cls._load, folder, sha256, executor, text_tokens
            )
        except BaseException:
            executor.shutdown(wait=False)
            raise

    @classmethod
    def _load(
        cls, folder: Path, sha256: str, executor: ThreadPoolExecutor, text_tokens: int
    ) -> CrossEncoder:
        read = read_folder(folder, sha256)
        try:
            session = open_session(read.weights)
        except Exception as error:
            raise refused(folder, f"{read.weights.name} is not a model: {error}") from error
        heap_trim.trim_heap()
        inputs = {tensor.name for tensor in session.get_inputs()}
        if not _REQUIRED <= inputs <= _KNOWN:
            raise refused(folder, f"its inputs are {sorted(inputs)}, expected {sorted(_KNOWN)}")
        reranker = cls(folder.resolve().name, read, session, executor, text_tokens)
        reranker._try(folder, len(read.vocabulary))
        return reranker

    @property
    def model_id(self) -> str:
        """See `Reranker.model_id`. Made of the folder's name and the start of the digest."""
        return self._model_id

    @property
    def max_tokens(self) -> int:
        """Maximum number of tokens of a query and a text together, including markers."""
        return self._max_tokens

    async def score(self, query: str, texts: Sequence[str]) -> list[float]:
        """See `Reranker.score`."""
        loop = asyncio.get_running_loop()
        scores: list[float] = []
        async with self._turn:
            for start in range(0, len(texts), _BATCH):
                batch = texts[start : start + _BATCH]
                scores += await loop.run_in_executor(
                    self._executor, self._score_batch, query, batch
                )
        return scores

    async def close(self) -> None:
        """Ends the thread after it has processed earlier calls."""
        await asyncio.to_thread(self._executor.shutdown)

    def _score_batch(self, query: str, texts: Sequence[str]) -> list[float]:
        # One pair per run: on one thread padding costs more than batching saves, and where
        # weights are quantized a score would depend on what else is in the batch.
        budget = self._max_tokens - _MARKERS
        question = self._tokenizer.tokenize(query, budget)
        scores = []
        for text in texts:
            tokens = self._tokenizer.tokenize(text, _LONGEST_TEXT)
            pair = self._tokenizer.join(*fit_pair(question, tokens, budget, self._text_tokens))
            scores.append(float(self._run(*pair).item()))
        return scores

    def _run(self, ids: Sequence[int], types: Sequence[int]) -> npt.NDArray[np.float32]:
        row = np.array([ids], dtype=np.int64)
        tensors = {
            "input_ids": row,
            "attention_mask": np.ones_like(row),
            "token_type_ids": np.array([types], dtype=np.int64),
        }
        outputs = self._session.run(None, {name: tensors[name] for name in self._inputs})
        scores: npt.NDArray[np.float32] = outputs[0]
        return scores

    def _try(self, folder: Path, tokens: int) -> None:
        for length in (1, self._max_tokens - _MARKERS):
            # With the last token, a model for a smaller vocabulary fails.
            pair = self._tokenizer.join((), [tokens - 1] * length)
            try:
                scores = self._run(*pair)
            except Exception as error:
                raise refused(
                    folder, f"it fails for a pair of {len(pair[0])} tokens: {error}"
                ) from error
            if scores.size != 1:
                raise refused(
                    folder, f"it returns {scores.size} numbers for a pair; a reranker returns one"
                )
            if not np.isfinite(scores).all():
                raise refused(folder, "its score for a pair is not a finite number")
