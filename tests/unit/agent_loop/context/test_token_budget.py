"""The ratio of bytes to tokens from exact counts in a stored window."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strata.agent_loop.context.requests import View
from strata.agent_loop.context.token_budget import TokenBudget
from strata.agent_loop.domain.conversation.messages import Message, SummaryPart
from strata.agent_loop.domain.model.chat import ModelSettings, TextPart
from strata.agent_loop.domain.tools import ToolSet
from strata.agent_loop.models.tokens import TokenEstimator
from strata.shared.messages import MessageRole
from strata.shared.usage import Usage

SETTINGS = ModelSettings("test/model", "openai", "model", context_window=8_000)
VIEW = View(5_000)
NONE = ToolSet(())


def sized_message(number: int, role: MessageRole, size: int, tokens: int = 0) -> Message:
    """Returns a message; with `tokens`, a reply to a prompt of that size."""
    message = Message(f"m{number}", role, (TextPart("x" * size),), sequence=number)
    if not tokens:
        return message
    return replace(message, model=SETTINGS.handle, usage=Usage(prompt_tokens=tokens))


def read(*messages: Message, tokens: TokenEstimator | None = None) -> TokenBudget:
    token_budget = TokenBudget(tokens or TokenEstimator(), SETTINGS, "agent-1")
    token_budget.read(messages, NONE, VIEW)
    return token_budget


def test_count_of_a_shortened_prompt_is_not_overrated() -> None:
    window = [
        sized_message(0, MessageRole.SYSTEM, 8_000),
        sized_message(1, MessageRole.USER, 400),
        sized_message(2, MessageRole.ASSISTANT, 100, tokens=2_100),
        # 24,000 bytes of which the model got a part: this count gives eight bytes a token.
        sized_message(3, MessageRole.TOOL, 0),
        sized_message(4, MessageRole.USER, 23_500),
        sized_message(5, MessageRole.ASSISTANT, 100, tokens=4_000),
    ]
    assert read(*window[:3]).ratio == pytest.approx(4.0)
    assert read(*window).ratio == pytest.approx(4.0)


def test_learnt_ratio_applies_if_every_prompt_was_shortened() -> None:
    tokens = TokenEstimator()
    TokenBudget(tokens, SETTINGS, "agent-1").observe(16_000, Usage(prompt_tokens=4_000))
    window = [
        sized_message(0, MessageRole.SYSTEM, 24_000),
        sized_message(1, MessageRole.ASSISTANT, 100, tokens=3_000),
    ]
    assert read(*window).ratio == pytest.approx(8.0)
    assert read(*window, tokens=tokens).ratio == pytest.approx(4.0)


def test_the_newest_counts_decide_where_the_text_becomes_denser() -> None:
    window = [sized_message(0, MessageRole.SYSTEM, 4_000)]
    window += [
        sized_message(number, MessageRole.ASSISTANT, 4_000, tokens=1_000 * number * number)
        for number in range(1, 6)
    ]
    # By the newest count, 20,000 bytes are 25,000 tokens.
    assert read(*window).ratio == pytest.approx(0.8)


def test_counts_before_the_summary_are_ignored() -> None:
    summary = Message("s", MessageRole.SUMMARY, (SummaryPart("short"),), sequence=9)
    window = [
        sized_message(0, MessageRole.SYSTEM, 8_000),
        summary,
        sized_message(5, MessageRole.ASSISTANT, 100, tokens=4_000),
    ]
    before = TokenBudget(TokenEstimator(), SETTINGS, "agent-1").ratio
    assert read(*window).ratio == before
    newer = sized_message(10, MessageRole.ASSISTANT, 100, tokens=4_000)
    assert read(*window, newer).ratio == pytest.approx(2.1, abs=0.1)


def test_counts_under_a_longer_system_message_are_ignored() -> None:
    """Files were closed in between: the first count is that of an earlier prompt."""
    window = [
        sized_message(0, MessageRole.SYSTEM, 4_000),
        sized_message(1, MessageRole.ASSISTANT, 100, tokens=7_000),
        sized_message(2, MessageRole.USER, 300),
        sized_message(3, MessageRole.ASSISTANT, 100, tokens=1_100),
    ]
    assert read(*window).ratio == pytest.approx(4.0)
