"""Estimates the tokens of a prompt before the provider counts them.

The estimate starts from the provider's last exact count and adds what was appended since. The
ratio of bytes to tokens is learnt per provider, model and agent, and for new agents per project: it
depends on what is talked about, and no project may shift the limits of another one. The ratios
before the first count were measured (decision 0030).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from strata.agent_loop.domain.model.chat import (
    ChatMessage,
    EndpointType,
    ModelRequest,
    ToolSchema,
)
from strata.agent_loop.models.dialects.table import dialect_of
from strata.shared.context import calling_project
from strata.shared.text_bytes import text_bytes
from strata.shared.usage import Usage

DEFAULT_HEADROOM = 0.10

# The counts of smaller prompts reflect the overhead of the template more than the text.
_MIN_SAMPLE_BYTES = 400
_WEIGHT = 0.3
_LOWEST_RATIO, _HIGHEST_RATIO = 0.5, 12.0
_MAX_KEYS = 10_000
_size_bytes = attrgetter("size_bytes")


@dataclass(frozen=True, slots=True)
class TokenKey:
    """The key of a learnt ratio: of one agent, or, without `agent`, of all agents of a project."""

    endpoint_type: EndpointType
    model: str
    agent: str = ""
    project: str = ""


class TokenEstimator:
    """Learns bytes per token from exact counts. Keeps only the most recently used keys."""

    def __init__(self, max_keys: int = _MAX_KEYS) -> None:
        self._ratios: OrderedDict[TokenKey, float] = OrderedDict()
        self._max_keys = max_keys

    def ratio(self, key: TokenKey) -> float:
        """Returns bytes per token: learnt for the key, else for its model, else the default.

        What was learnt for a model is what the calling project's requests taught.
        """
        for ratio_key in (key, _of_project(key)):
            if ratio_key in self._ratios:
                self._ratios.move_to_end(ratio_key)
                return self._ratios[ratio_key]
        return dialect_of(key.endpoint_type).bytes_per_token

    def learnt(self, key: TokenKey) -> float | None:
        """Returns bytes per token learnt for exactly this key; None before the first count."""
        return self._ratios.get(key)

    def estimate(self, key: TokenKey, size: int) -> int:
        """Returns the tokens of `size` bytes, rounded up."""
        return -int(-size // self.ratio(key))

    def observe(self, key: TokenKey, size: int, usage: Usage) -> None:
        """Learns from an exact count of a prompt of `size` bytes; ignores estimated counts."""
        sample = sample_ratio(size, usage)
        if sample is None:
            return
        for ratio_key in {key, _of_project(key)}:
            old = self._ratios.get(ratio_key)
            self._ratios[ratio_key] = sample if old is None else old + _WEIGHT * (sample - old)
            self._ratios.move_to_end(ratio_key)
        while len(self._ratios) > self._max_keys:
            self._ratios.popitem(last=False)


def sample_ratio(size: int, usage: Usage) -> float | None:
    """Returns bytes per token of a prompt; None if the count is estimated or implausible."""
    if usage.estimated or usage.prompt_tokens <= 0 or size < _MIN_SAMPLE_BYTES:
        return None
    sample = size / usage.prompt_tokens
    return sample if _LOWEST_RATIO <= sample <= _HIGHEST_RATIO else None


def fits(tokens: int, context_window: int, *, headroom: float = DEFAULT_HEADROOM) -> bool:
    """Returns whether a prompt leaves `headroom` (a fraction) of the window free."""
    return tokens <= context_window * (1.0 - headroom)


def request_bytes(request: ModelRequest) -> int:
    """Returns the bytes of a request: of its messages and tool schemas."""
    return messages_bytes(request.messages) + tools_bytes(request.tools)


def messages_bytes(messages: Iterable[ChatMessage]) -> int:
    """Returns the UTF-8 bytes of texts, reasoning and calls, plus the weights of images."""
    return sum(map(_size_bytes, messages))


def tools_bytes(tools: Sequence[ToolSchema]) -> int:
    """Returns the UTF-8 bytes of tool schemas in the form in which they are sent."""
    return sum(map(_size_bytes, tools))


def estimate_usage(request: ModelRequest, reply_text: str, endpoint_type: EndpointType) -> Usage:
    """Returns estimated usage, for servers that report none."""
    ratio = dialect_of(endpoint_type).bytes_per_token
    return Usage(
        prompt_tokens=round(request_bytes(request) / ratio),
        completion_tokens=round(text_bytes(reply_text) / ratio),
        estimated=True,
    )


def _of_project(key: TokenKey) -> TokenKey:
    """Returns the key of the ratio that all agents of the calling project share."""
    return TokenKey(key.endpoint_type, key.model, project=calling_project())
