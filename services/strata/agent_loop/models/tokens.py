"""How many tokens a prompt will take, before the provider tells.

The provider's own count is exact, so the estimate starts from the last one and adds only what
was appended since. The ratio of bytes to tokens is learnt per provider, model and agent; figures
for the first call are measured ones (decision 0030).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from strata.agent_loop.models.dialects.table import dialect_of
from strata.agent_loop.models.domain import (
    ChatMessage,
    EndpointType,
    ModelRequest,
    PromptPart,
    ReasoningPart,
    ShownImage,
    ToolSchema,
    Usage,
)
from strata.agent_loop.models.text_bytes import text_bytes

DEFAULT_HEADROOM = 0.10

# Prompts below this many bytes say more about a template's overhead than about the text.
_MIN_SAMPLE_BYTES = 400
_WEIGHT = 0.3
_LOWEST_RATIO, _HIGHEST_RATIO = 0.5, 12.0
_MAX_KEYS = 10_000


@dataclass(frozen=True, slots=True)
class TokenKey:
    """What a learnt ratio belongs to. `agent` may be empty for a ratio shared by all agents."""

    endpoint_type: EndpointType
    model: str
    agent: str = ""


class TokenEstimator:
    """Learns bytes per token from exact usage. Holds the most recently used keys only."""

    def __init__(self, max_keys: int = _MAX_KEYS) -> None:
        self._ratios: OrderedDict[TokenKey, float] = OrderedDict()
        self._max_keys = max_keys

    def ratio(self, key: TokenKey) -> float:
        """Bytes per token: learnt for the key, else for its model, else the first-call figure."""
        for known in (key, TokenKey(key.endpoint_type, key.model)):
            if known in self._ratios:
                self._ratios.move_to_end(known)
                return self._ratios[known]
        return dialect_of(key.endpoint_type).bytes_per_token

    def learnt(self, key: TokenKey) -> float | None:
        """Bytes per token as exact counts of this very key have told; None before there is one."""
        return self._ratios.get(key)

    def estimate(self, key: TokenKey, size: int) -> int:
        """Tokens of `size` bytes, rounded up."""
        return -int(-size // self.ratio(key))

    def estimate_next(self, key: TokenKey, last_total: int, added: int) -> int:
        """Tokens of a prompt that was `last_total` tokens long and has grown by `added` bytes."""
        return last_total + self.estimate(key, added)

    def observe(self, key: TokenKey, size: int, usage: Usage) -> None:
        """Learns from an exact count of a prompt of `size` bytes; ignores estimated counts."""
        sample = sample_ratio(size, usage)
        if sample is None:
            return
        for known in {key, TokenKey(key.endpoint_type, key.model)}:
            old = self._ratios.get(known)
            self._ratios[known] = sample if old is None else old + _WEIGHT * (sample - old)
            self._ratios.move_to_end(known)
        while len(self._ratios) > self._max_keys:
            self._ratios.popitem(last=False)


def sample_ratio(size: int, usage: Usage) -> float | None:
    """Bytes per token of a prompt of `size` bytes; None if the count is not exact or not sane."""
    if usage.estimated or usage.prompt_tokens <= 0 or size < _MIN_SAMPLE_BYTES:
        return None
    sample = size / usage.prompt_tokens
    return sample if _LOWEST_RATIO <= sample <= _HIGHEST_RATIO else None


def fits(tokens: int, context_window: int, *, headroom: float = DEFAULT_HEADROOM) -> bool:
    """Whether an estimated prompt leaves `headroom` (a fraction) of the window free."""
    return tokens <= context_window * (1.0 - headroom)


def request_bytes(request: ModelRequest) -> int:
    """Bytes that the model reads: messages and tool schemas."""
    return messages_bytes(request.messages) + tools_bytes(request.tools)


def messages_bytes(messages: Iterable[ChatMessage]) -> int:
    """UTF-8 bytes of texts, replayed reasoning and calls, and the weights of images."""
    return sum(map(_message_bytes, messages))


def tools_bytes(tools: Sequence[ToolSchema]) -> int:
    """UTF-8 bytes of the tools as they are sent."""
    return sum([tool.size_bytes for tool in tools])


def estimate_usage(request: ModelRequest, reply_text: str, endpoint_type: EndpointType) -> Usage:
    """Stands in for the usage that a server did not report."""
    ratio = dialect_of(endpoint_type).bytes_per_token
    return Usage(
        prompt_tokens=round(request_bytes(request) / ratio),
        completion_tokens=round(text_bytes(reply_text) / ratio),
        estimated=True,
    )


def _message_bytes(message: ChatMessage) -> int:
    size = 0
    for part in message.content:
        size += _part_bytes(part)
    for call in message.tool_calls:
        size += text_bytes(call.name) + text_bytes(call.arguments)
    return size


def _part_bytes(part: PromptPart) -> int:
    if isinstance(part, ShownImage):
        return part.weight
    if isinstance(part, ReasoningPart):
        return text_bytes(part.text) + text_bytes(part.redacted)
    return text_bytes(part.text)
