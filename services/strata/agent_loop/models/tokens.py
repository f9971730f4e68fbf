"""How many tokens a prompt will take, before the provider tells.

The provider's own count is exact, so the estimate starts from the last one and adds only what
was appended since. The ratio of bytes to tokens is learnt per provider, model and agent; figures
for the first call are measured ones (decision 0030).
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from strata.agent_loop.models.domain import (
    ChatMessage,
    EndpointType,
    ModelRequest,
    ReasoningPart,
    ToolSchema,
    Usage,
)

# Bytes per token before anything is known: mixed text, tool schemas and JSON. The newest
# Anthropic tokenizer makes far more tokens than the usual four bytes each would suggest.
FIRST_CALL_RATIO = {EndpointType.OPENAI: 3.2, EndpointType.ANTHROPIC: 1.8}
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
        return FIRST_CALL_RATIO[key.endpoint_type]

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
    """UTF-8 bytes of texts, replayed reasoning and calls."""
    return sum(_message_bytes(message) for message in messages)


def tools_bytes(tools: Sequence[ToolSchema]) -> int:
    """UTF-8 bytes of the tools as they are sent."""
    return sum(
        _size(tool.name) + _size(tool.description) + _size(_compact(dict(tool.parameters)))
        for tool in tools
    )


def estimate_usage(request: ModelRequest, reply_text: str, endpoint_type: EndpointType) -> Usage:
    """Stands in for the usage that a server did not report."""
    ratio = FIRST_CALL_RATIO[endpoint_type]
    return Usage(
        prompt_tokens=round(request_bytes(request) / ratio),
        completion_tokens=round(_size(reply_text) / ratio),
        estimated=True,
    )


def _message_bytes(message: ChatMessage) -> int:
    parts = sum(
        _size(part.text) + _size(part.redacted)
        if isinstance(part, ReasoningPart)
        else _size(part.text)
        for part in message.content
    )
    return parts + sum(_size(call.name) + _size(call.arguments) for call in message.tool_calls)


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
