"""The inference engine: llama.cpp through its Python bindings."""

from __future__ import annotations

import ctypes
import functools
import importlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

from .requests import Sampling
from .sampling import Sampler

_WARM_UP = [("Hello", False)]
_GRAMMARS_KEPT = 32
_LONGEST_PIECE_BYTES = 512


class LlamaEngine:
    """One model with one sequence, whose KV cache is kept between requests.

    The common prefix of a prompt with the previous prompt and reply is not computed again.

    Args:
        model_path: The GGUF file.
        context_tokens: Maximum number of tokens of prompt and reply together.
        batch_tokens: Prompt tokens that are computed between two checks for a disconnected client.
        threads: Threads that compute.
    """

    def __init__(
        self, model_path: str, context_tokens: int, batch_tokens: int, threads: int
    ) -> None:
        # Imported dynamically: the bindings have no types and are missing where mypy runs.
        self._bindings: Any = importlib.import_module("llama_cpp")
        self._converter: Any = importlib.import_module("llama_cpp.llama_grammar")
        self._model: Any = self._bindings.Llama(
            model_path,
            n_ctx=context_tokens,
            n_batch=batch_tokens,
            n_ubatch=batch_tokens,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
        )
        self._vocabulary: Any = self._bindings.llama_model_get_vocab(self._model.model)
        self.context_tokens = context_tokens
        self._batch_tokens = batch_tokens
        self._reused = 0
        self._grammar = functools.lru_cache(maxsize=_GRAMMARS_KEPT)(self._make_grammar)

    @property
    def reused_tokens(self) -> int:
        """See Engine."""
        return self._reused

    def encode(self, segments: Sequence[tuple[str, bool]]) -> list[int]:
        """See Engine."""
        tokens: list[int] = []
        for text, markers in segments:
            tokens += self._model.tokenize(text.encode(), add_bos=False, special=markers)
        return tokens

    def generate(self, tokens: list[int], sampling: Sampling) -> Iterator[bytes | None]:
        """See Engine."""
        lib, model = self._bindings, self._model
        seed = random.getrandbits(31) if sampling.seed is None else sampling.seed & 0x7FFFFFFF
        grammar = None if sampling.schema is None else self._grammar(sampling.schema)
        with Sampler(lib, self._vocabulary, sampling, seed, grammar) as sampler:
            yield from self._read_prompt(tokens)
            token = tokens[-1]
            while model.n_tokens < self.context_tokens:
                model.eval([token])
                token = sampler.next_token(model.ctx)
                if lib.llama_vocab_is_eog(self._vocabulary, token):
                    return
                yield self._piece(token)

    def warm_up(self) -> None:
        """Computes a token, so that code that this processor cannot run fails at start."""
        for count, _ in enumerate(self.generate(self.encode(_WARM_UP), Sampling())):
            if count > 2:
                return

    def _read_prompt(self, tokens: list[int]) -> Iterator[None]:
        """Computes all but the last token of the prompt, in small steps."""
        model = self._model
        self._reused = shared = _common_prefix(model.input_ids[: model.n_tokens], tokens[:-1])
        model.n_tokens = shared  # `eval` forgets what follows
        for start in range(shared, len(tokens) - 1, self._batch_tokens):
            yield None
            model.eval(tokens[start : min(start + self._batch_tokens, len(tokens) - 1)])
        yield None

    def _piece(self, token: int) -> bytes:
        # The bindings' own function has a buffer of 32 bytes and drops longer tokens (indentation).
        buffer = (ctypes.c_char * _LONGEST_PIECE_BYTES)()
        size = self._bindings.llama_token_to_piece(
            self._vocabulary, token, buffer, _LONGEST_PIECE_BYTES, 0, False
        )
        return buffer.raw[: max(0, size)]

    def _make_grammar(self, schema: str) -> str:
        try:
            return str(self._converter.json_schema_to_gbnf(schema))
        except Exception as error:  # the converter raises any error for an unsupported schema
            raise ValueError(f"{type(error).__name__}: {error}") from error


def _common_prefix(cached: Any, tokens: Sequence[int]) -> int:
    length = min(len(cached), len(tokens))
    return next((at for at in range(length) if cached[at] != tokens[at]), length)
