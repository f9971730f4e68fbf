"""Samples the next token; a grammar is checked on the proposed token first.

The bindings apply a grammar to the whole vocabulary before they sample, which takes half as long
as the model's work for a token. The proposed token is nearly always allowed, and checking that one
alone costs nearly nothing.
"""

from __future__ import annotations

import ctypes
import math
from types import TracebackType
from typing import Any, Self

import numpy as np

from .requests import Sampling

_MIN_P = 0.05
_TOP_K = 40
_CANDIDATE = np.dtype([("id", "i4"), ("logit", "f4"), ("p", "f4")])  # llama_token_data
_PENALTY_WINDOW_TOKENS = 64


class Sampler:
    """Samplers of llama.cpp for one reply; a context manager that frees them.

    Args:
        bindings: The module `llama_cpp`.
        vocabulary: Handle of the model's vocabulary.
        sampling: The requested parameters.
        seed: Seed of the random choice.
        grammar: Rules in GBNF that the whole reply must follow, or None.

    Raises:
        ValueError: llama.cpp refuses the grammar.
    """

    def __init__(
        self, bindings: Any, vocabulary: Any, sampling: Sampling, seed: int, grammar: str | None
    ) -> None:
        self._bindings = bindings
        self._vocabulary_size = bindings.llama_vocab_n_tokens(vocabulary)
        self._penalised = bool(sampling.frequency_penalty or sampling.presence_penalty)
        self._grammar: Any = None
        if grammar is not None:
            self._grammar = bindings.llama_sampler_init_grammar(
                vocabulary, grammar.encode(), b"root"
            )
            if not self._grammar:
                raise ValueError("llama.cpp refuses the grammar made from it")
        self._chain = self._make_chain(sampling, seed)

    def _make_chain(self, sampling: Sampling, seed: int) -> Any:
        lib = self._bindings
        chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        steps = []
        if self._penalised:
            steps.append(
                lib.llama_sampler_init_penalties(
                    self._vocabulary_size,
                    _PENALTY_WINDOW_TOKENS,
                    1.0,
                    sampling.frequency_penalty,
                    sampling.presence_penalty,
                )
            )
        if sampling.temperature == 0.0:
            steps.append(lib.llama_sampler_init_greedy())
        else:
            steps += [
                lib.llama_sampler_init_top_k(_TOP_K),
                lib.llama_sampler_init_top_p(sampling.top_p, 1),
                lib.llama_sampler_init_min_p(_MIN_P, 1),
                lib.llama_sampler_init_temp(sampling.temperature),
                lib.llama_sampler_init_dist(seed),
            ]
        for step in steps:
            lib.llama_sampler_chain_add(chain, step)
        return chain

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bindings.llama_sampler_free(self._chain)
        if self._grammar is not None:
            self._bindings.llama_sampler_free(self._grammar)

    def next_token(self, context: Any) -> int:
        """Returns the next token after the last computation of the context."""
        if self._grammar is None:
            return int(self._bindings.llama_sampler_sample(self._chain, context, -1))
        # Penalties count proposed tokens: a refused proposal must not be counted.
        token = None if self._penalised else self._proposal(context)
        if token is None:
            token = self._choose_allowed(context)
        self._bindings.llama_sampler_accept(self._grammar, token)
        return token

    def _proposal(self, context: Any) -> int | None:
        """Returns the sampled token; None if the grammar forbids it."""
        token = int(self._bindings.llama_sampler_sample(self._chain, context, -1))
        candidate = self._bindings.llama_token_data(token, 1.0, 0.0)
        self._apply(self._grammar, ctypes.pointer(candidate), 1)
        return None if math.isinf(candidate.logit) else token

    def _choose_allowed(self, context: Any) -> int:
        size = self._vocabulary_size
        logits = self._bindings.llama_get_logits_ith(context, -1)
        candidates = np.zeros(size, dtype=_CANDIDATE)
        candidates["id"] = np.arange(size)
        candidates["logit"] = np.ctypeslib.as_array(logits, shape=(size,))
        data = candidates.ctypes.data_as(ctypes.POINTER(self._bindings.llama_token_data))
        self._apply(self._grammar, data, size)
        chosen = self._apply(self._chain, data, size)
        token = int(chosen.data[chosen.selected].id)
        self._bindings.llama_sampler_accept(self._chain, token)
        return token

    def _apply(self, sampler: Any, data: Any, size: int) -> Any:
        array = self._bindings.llama_token_data_array(data, size, -1, False)
        self._bindings.llama_sampler_apply(sampler, ctypes.byref(array))
        return array
