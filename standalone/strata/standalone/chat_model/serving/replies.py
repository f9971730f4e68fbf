"""Computes the reply to a validated request: queue, engine, and streaming of safe text."""

from __future__ import annotations

import codecs
import collections
import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .requests import ApiError, ChatRequest, Sampling

MAX_WAITING = 16
POLL_SECONDS = 0.2


class LocalModel(Protocol):
    """The model; only `encode` may be called by several threads at a time."""

    context_tokens: int

    def encode(self, segments: Sequence[tuple[str, bool]]) -> list[int]:
        """Turns text into tokens; markers are recognised only in segments marked True."""
        ...

    def generate(self, tokens: list[int], sampling: Sampling) -> Iterator[bytes | None]:
        """Yields None while the prompt is processed, then the bytes of each token.

        Raises ValueError, before the first token, for a schema that cannot be a grammar.
        """
        ...

    @property
    def reused_tokens(self) -> int:
        """Prompt tokens of the last `generate` that were in the cache."""
        ...


class TextAssembler:
    """Decodes the bytes of tokens to text that can be sent: whole characters, no stop texts."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._held_text = ""
        self.stopped = False

    def feed(self, data: bytes, *, final: bool = False) -> str:
        """Adds the bytes of a token; returns the text that can be sent now."""
        if self.stopped:
            return ""
        self._held_text += self._decode(data, final)
        starts = [at for stop in self._stops if (at := self._held_text.find(stop)) >= 0]
        if starts:
            self.stopped = True
            ready, self._held_text = self._held_text[: min(starts)], ""
            return ready
        keep = 0 if final else max(map(self._overlap, self._stops), default=0)
        ready = self._held_text[: len(self._held_text) - keep]
        self._held_text = self._held_text[len(self._held_text) - keep :]
        return ready

    def _overlap(self, stop: str) -> int:
        """Returns the length of the longest suffix of the held text that may start a stop text."""
        longest = min(len(stop) - 1, len(self._held_text))
        return next((n for n in range(longest, 0, -1) if self._held_text.endswith(stop[:n])), 0)


@dataclass
class Reply:
    """The reply to one request so far."""

    prompt_tokens: int
    completion_tokens: int = 0
    reused_tokens: int = 0
    finish_reason: str = "stop"
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def usage(self) -> dict[str, Any]:
        """The usage object of the OpenAI API."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.reused_tokens},
        }


class Turnstile:
    """A queue that admits one request at a time, in the order of arrival."""

    def __init__(self, limit: int = MAX_WAITING) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        self._queue: collections.deque[object] = collections.deque()

    @contextlib.contextmanager
    def turn(self, heartbeat: Callable[[], None]) -> Iterator[None]:
        """Waits until admitted; calls `heartbeat` meanwhile, which may raise to leave the queue."""
        ticket = object()
        with self._changed:
            if len(self._queue) > self._limit:
                raise ApiError(503, f"{self._limit} requests are waiting", "queue_full")
            self._queue.append(ticket)
        try:
            while True:
                with self._changed:
                    if self._queue[0] is ticket:
                        break
                    self._changed.wait(POLL_SECONDS)
                heartbeat()
            yield
        finally:
            with self._changed:
                self._queue.remove(ticket)
                self._changed.notify_all()


class ChatService:
    """Answers chat requests with an engine."""

    def __init__(self, engine: LocalModel, model_id: str, waiting: int = MAX_WAITING) -> None:
        self.engine = engine
        self.model_id = model_id
        self._turnstile = Turnstile(waiting)

    def prepare(self, request: ChatRequest) -> tuple[list[int], Reply]:
        """Makes the prompt. Raises ApiError if it leaves no space for a reply."""
        tokens = self.engine.encode(request.segments)
        if len(tokens) >= self.engine.context_tokens:
            message = (
                f"This model's maximum context length is {self.engine.context_tokens} tokens. "
                f"However, your messages resulted in {len(tokens)} tokens."
            )
            raise ApiError(400, message, "context_length_exceeded", "messages")
        return tokens, Reply(prompt_tokens=len(tokens))

    def texts(
        self,
        request: ChatRequest,
        tokens: list[int],
        reply: Reply,
        heartbeat: Callable[[], None],
    ) -> Iterator[str]:
        """Yields the reply's text and fills in `reply`. `heartbeat` may raise to stop."""
        with self._turnstile.turn(heartbeat):
            pieces = self.engine.generate(tokens, request.sampling)
            try:
                yield from self._assemble(request, pieces, reply, heartbeat)
            except ValueError as error:
                message = f"the schema cannot be used: {error}"
                raise ApiError(400, message, "invalid_value", "response_format") from error
            finally:
                if isinstance(pieces, Generator):
                    pieces.close()

    def _assemble(
        self,
        request: ChatRequest,
        pieces: Iterator[bytes | None],
        reply: Reply,
        heartbeat: Callable[[], None],
    ) -> Iterator[str]:
        space = self.engine.context_tokens - reply.prompt_tokens
        limit = min(request.max_tokens, space)
        text = TextAssembler(request.stops)
        for piece in pieces:
            heartbeat()
            if piece is None:
                continue
            reply.reused_tokens = self.engine.reused_tokens
            reply.completion_tokens += 1
            if ready := text.feed(piece):
                yield ready
            if text.stopped:
                return
            if reply.completion_tokens >= limit:
                reply.finish_reason = "length"
                break
        if rest := text.feed(b"", final=True):
            yield rest
