"""Estimates start from defaults and converge to exact counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callers import as_project
from strata.agent_loop.domain.model.chat import ChatMessage, ModelRequest, ToolCall, ToolSchema
from strata.agent_loop.models.tokens import TokenEstimator, TokenKey, fits, request_bytes
from strata.shared.context import use
from strata.shared.usage import Usage

KEY = TokenKey("openai", "m", "agent-1")
OTHER = TokenKey("openai", "m", "agent-2")
CLAUDE = TokenKey("anthropic", "c", "agent-1")


def test_first_calls_use_the_measured_ratio_of_the_protocol() -> None:
    estimator = TokenEstimator()
    assert estimator.estimate(KEY, 3200) == 1000
    assert estimator.estimate(CLAUDE, 1800) == 1000


@given(st.floats(1.0, 8.0), st.integers(1000, 100_000))
def test_a_steady_ratio_is_learnt(ratio: float, size: int) -> None:
    estimator = TokenEstimator()
    for _ in range(30):
        estimator.observe(KEY, size, Usage(prompt_tokens=max(1, round(size / ratio))))
    assert estimator.ratio(KEY) == pytest.approx(size / round(size / ratio), rel=0.01)


def test_a_new_agent_starts_with_the_ratio_of_its_model() -> None:
    estimator = TokenEstimator()
    estimator.observe(KEY, 4000, Usage(prompt_tokens=1000))
    assert estimator.ratio(OTHER) == 4.0
    assert estimator.ratio(CLAUDE) == 1.8


def test_a_project_does_not_learn_from_the_texts_of_another() -> None:
    estimator = TokenEstimator()
    with use(as_project("project-1")):
        for _ in range(20):
            estimator.observe(KEY, 4000, Usage(prompt_tokens=4000))
        assert estimator.ratio(OTHER) == 1.0
    with use(as_project("project-2")):
        assert estimator.ratio(OTHER) == 3.2


@pytest.mark.parametrize(
    ("size", "usage"),
    [
        (4000, Usage(prompt_tokens=1000, estimated=True)),
        (4000, Usage()),
        (100, Usage(prompt_tokens=90)),
        (4000, Usage(prompt_tokens=1)),
        (4000, Usage(prompt_tokens=40_000)),
    ],
)
def test_uninformative_counts_are_ignored(size: int, usage: Usage) -> None:
    estimator = TokenEstimator()
    estimator.observe(KEY, size, usage)
    assert estimator.ratio(KEY) == 3.2


def test_memory_is_bounded() -> None:
    estimator = TokenEstimator(max_keys=3)
    for number in range(20):
        key = TokenKey("openai", "m", f"agent-{number}")
        estimator.observe(key, 4000, Usage(prompt_tokens=1000))
    assert len(estimator._ratios) == 3
    assert estimator.ratio(TokenKey("openai", "m", "agent-19")) == 4.0


def test_request_bytes_include_messages_and_tools() -> None:
    tool = ToolSchema("t", "d", {"a": 1})
    messages = [ChatMessage.user("ü"), ChatMessage.assistant("", [ToolCall("id", "t", "{}")])]
    assert request_bytes(ModelRequest(messages, [tool])) == 2 + 1 + 2 + 1 + 1 + len('{"a":1}')


def test_headroom_is_kept_free() -> None:
    assert fits(900, 1000)
    assert not fits(901, 1000)
