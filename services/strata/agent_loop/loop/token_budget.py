"""How full a window is, in tokens: the provider's count, and an estimate of what came since.

The shares are those of docs/wire-format.md#shares-of-the-window.
"""

from __future__ import annotations

from collections.abc import Sequence

from strata.agent_loop.domain.messages import Message, MessageRole
from strata.agent_loop.domain.tools import ToolSet
from strata.agent_loop.loop.requests import View
from strata.agent_loop.models.domain import ModelSettings, Usage
from strata.agent_loop.models.tokens import (
    DEFAULT_HEADROOM,
    TokenEstimator,
    TokenKey,
    sample_ratio,
    tools_bytes,
)

MESSAGES_SHARE = 0.1
"""Share of the usable prompt that is kept for messages: memory blocks never take it, and open
files are closed before they do."""

FILES_SHARE = 0.25
"""Share of the usable prompt that is left for messages when files are opened. It is larger than
`MESSAGES_SHARE`, so that a file that was just opened is not closed at the next step because a
block has grown or the estimate of tokens has changed."""

MIN_SPACE_SHARE = 0.05
"""Share of a prompt that messages need at least for a compaction to be worth its cost."""

# More bytes per token than any text has: what is too large by this measure is too large.
_GENEROUS_RATIO = 6.0
# Steps in a row whose prompts were cut are seldom more.
_COUNTS = 3


class TokenBudget:
    """Bytes and tokens of one agent's windows.

    The last exact counts of this very window give the bytes per token; what was added since is
    taken to have as many. Before there is one, what other calls of the model taught is used.

    Args:
        tokens: What is known of bytes per token.
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
        """Bytes that system prompt, memory and tools may take if messages keep a share."""
        return self.max_bytes * (1.0 - share)

    def estimate(self, size: int) -> int:
        """Tokens of a prompt of `size` bytes, rounded up."""
        return -int(-size // self.ratio)

    def least(self, size: int) -> int:
        """Tokens that a prompt of `size` bytes has at the very least."""
        return int(size / max(_GENEROUS_RATIO, self.ratio))

    def observe(self, size: int, usage: Usage) -> None:
        """Takes in the count of a request of `size` bytes."""
        self._tokens.observe(self._key, size, usage)
        self._sample = sample_ratio(size, usage) or self._sample

    def read(self, messages: Sequence[Message], tools: ToolSet, view: View) -> None:
        """Finds the last exact counts in a stored window, so that any process knows them.

        A count that is older than the summary in the window is of another window. Of a prompt
        that was cut to fit, the count is of less than the window shows, which looks like more
        bytes per token than there are: therefore the least of the last few counts holds. A count
        that is larger than a later one was made under a longer system message and is left out.

        Args:
            messages: The window, with the system message that the last count was made under.
            tools: What the model is offered.
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
    """Returns the bytes of open files to close so that messages have space; 0 if they have it.

    Args:
        fixed: Bytes of system message and tools.
        max_bytes: Bytes that the prompt may have.
    """
    if fixed <= max_bytes * (1.0 - MESSAGES_SHARE):
        return 0
    return int(fixed - max_bytes * (1.0 - FILES_SHARE)) + 1


def compaction_helps(fixed: int, max_bytes: float) -> bool:
    """Says whether messages have space enough for a compaction to be worth its cost.

    Where they have not, the fixed part is the reason: whatever left the window now, the next
    turn would be too large again and pay for another summary.
    """
    return max_bytes - fixed >= max_bytes * MIN_SPACE_SHARE


def _growing(counted: Sequence[tuple[int, Usage]]) -> list[tuple[int, Usage]]:
    """Returns the counts that no later one is smaller than."""
    kept: list[tuple[int, Usage]] = []
    for position, usage in reversed(counted):
        if not kept or usage.prompt_tokens <= kept[-1][1].prompt_tokens:
            kept.append((position, usage))
    return kept[::-1]
