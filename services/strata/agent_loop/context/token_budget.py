"""Measures how full a context window is, in tokens.

The provider's last count gives the exact tokens up to it; what was added since is estimated. The
docs/wire-format.md#shares-of-the-window defines the shares.
"""

from __future__ import annotations

from collections.abc import Sequence

from strata.agent_loop.context.requests import View
from strata.agent_loop.domain.conversation.messages import Message
from strata.agent_loop.domain.model.chat import ModelSettings
from strata.agent_loop.domain.tools import ToolSet
from strata.agent_loop.models.tokens import (
    DEFAULT_HEADROOM,
    TokenEstimator,
    TokenKey,
    sample_ratio,
    tools_bytes,
)
from strata.shared.messages import MessageRole
from strata.shared.usage import Usage

MESSAGES_SHARE = 0.1
"""Share of the usable prompt that is kept for messages: memory blocks never take it, and open
files are closed before they do."""

FILES_SHARE = 0.25
"""Share of the usable prompt that is left for messages when files are opened. It is larger than
`MESSAGES_SHARE`, so that a file that was just opened is not closed at the next step because a
block has grown or the estimate of tokens has changed."""

SEARCH_SHARE = 0.1
"""Share of the usable prompt that the messages found by one search may take."""

LEAST_SEARCH_BYTES = 4_000
"""UTF-8 bytes that they may take in any case; the smallest limit of a return shows them whole."""

MIN_SPACE_SHARE = 0.05
"""Share of a prompt that messages need at least for a compaction to be worth its cost."""

# More bytes per token than any real text has: gives a lower bound of the tokens of a text.
_GENEROUS_RATIO = 6.0
# Last counts that are compared. Runs of steps with shortened prompts are rarely longer.
_COUNTS = 3


class TokenBudget:
    """Converts between bytes and tokens for the windows of one agent.

    The ratio comes from the last exact counts of the same window and is applied to messages added
    since. Without such a count, the ratio learnt from other calls of the model is used.

    Args:
        tokens: Ratios learnt so far, by model and agent.
        settings: The model that is asked.
        agent_id: The agent, for the learnt ratio.
    """

    def __init__(self, tokens: TokenEstimator, settings: ModelSettings, agent_id: str) -> None:
        self._tokens = tokens
        self._settings = settings
        self._key = TokenKey(settings.endpoint_type, settings.model, agent_id)
        self._sample: float | None = None

    @property
    def ratio(self) -> float:
        """Bytes per token."""
        return self._sample or self._tokens.ratio(self._key)

    @property
    def usable_tokens(self) -> int:
        """Tokens that a prompt may have: the window without the reply and without headroom."""
        window = self._settings.context_window
        reserve = min(self._settings.max_tokens or 0, window // 2)
        return int((window - reserve) * (1.0 - DEFAULT_HEADROOM))

    @property
    def max_bytes(self) -> float:
        """Bytes that a prompt may have."""
        return self.usable_tokens * self.ratio

    def bytes_beside_messages(self, share: float) -> float:
        """Bytes left for system prompt, memory and tools if messages keep `share` of the prompt."""
        return self.max_bytes * (1.0 - share)

    def estimate(self, size: int) -> int:
        """Tokens of a prompt of `size` bytes, rounded up."""
        return -int(-size // self.ratio)

    def least(self, size: int) -> int:
        """Returns a lower bound of the tokens of a prompt of `size` bytes."""
        return int(size / max(_GENEROUS_RATIO, self.ratio))

    def observe(self, size: int, usage: Usage) -> None:
        """Records the provider's token count of a request of `size` bytes."""
        self._tokens.observe(self._key, size, usage)
        self._sample = sample_ratio(size, usage) or self._sample

    def read(self, messages: Sequence[Message], tools: ToolSet, view: View) -> None:
        """Derives the ratio from the token counts stored in a window.

        Counts older than the window's summary belong to another window and are ignored. A prompt
        that was shortened to fit has fewer tokens than the window suggests, so its ratio is too
        high: the lowest ratio of the last few counts is used. A count larger than a later one was
        made under a longer system message and is ignored.

        Args:
            messages: The window, with the system message that the last count was made under.
            tools: The tools that the model is offered.
            view: How messages are shown.
        """
        summarised = max((m.sequence for m in messages if m.role is MessageRole.SUMMARY), default=0)
        counted = [
            (position, message.usage)
            for position, message in enumerate(messages)
            if position and message.usage is not None
            if message.model == self._settings.handle and message.sequence >= summarised
        ]
        size, start = tools_bytes(tools.schemas), 0
        samples = []
        for position, usage in _growing(counted[-_COUNTS:]):
            size += view.size(messages[start:position])
            start = position
            samples.append(sample_ratio(size, usage))
        if samples:
            samples.append(self._tokens.learnt(self._key))
        self._sample = min((sample for sample in samples if sample is not None), default=None)


def files_excess(fixed: int, max_bytes: float) -> int:
    """Returns the bytes of open files to close to make space for messages; 0 if there is enough.

    Args:
        fixed: Bytes of system message and tools.
        max_bytes: Bytes that the prompt may have.
    """
    if fixed <= max_bytes * (1.0 - MESSAGES_SHARE):
        return 0
    return int(fixed - max_bytes * (1.0 - FILES_SHARE)) + 1


def compaction_helps(fixed: int, max_bytes: float) -> bool:
    """Returns whether messages have enough space for a compaction to be worth its cost.

    If not, the system message and tools fill the prompt. Compacting would not help: the next turn
    would be too large again and pay for another summary.
    """
    return max_bytes - fixed >= max_bytes * MIN_SPACE_SHARE


def _growing(counted: Sequence[tuple[int, Usage]]) -> list[tuple[int, Usage]]:
    """Returns the counts that are not larger than any later count."""
    kept: list[tuple[int, Usage]] = []
    for position, usage in reversed(counted):
        if not kept or usage.prompt_tokens <= kept[-1][1].prompt_tokens:
            kept.append((position, usage))
    return kept[::-1]
