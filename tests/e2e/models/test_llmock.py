"""The same faults by another implementation: llmock's version of both protocols."""

import pytest
from llmock.pytest_plugin import LLMock

from doubles.bench import collect, request
from doubles.script import Dialect
from strata.agent_loop.domain.model.chat import ChatModel, ModelSettings
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind
from strata.agent_loop.models.factory import ModelFactory


@pytest.fixture(params=["openai", "anthropic"])
def dialect(request: pytest.FixtureRequest) -> Dialect:
    chosen: Dialect = request.param
    return chosen


@pytest.fixture
def model(llmock: LLMock, factory: ModelFactory, dialect: Dialect) -> ChatModel:
    names = {"openai": "gpt-4o-mini", "anthropic": "claude-haiku-4-5"}
    settings = ModelSettings(
        f"llmock/{names[dialect]}",
        dialect,
        names[dialect],
        base_url=llmock.base_url(dialect),
        api_key="test",
    )
    return factory.model(settings)


async def test_a_reply_has_its_text_and_usage(llmock: LLMock, model: ChatModel) -> None:
    llmock.reply("Hello from the mock.")
    _, reply = await collect(model, request())
    assert reply.text == "Hello from the mock."
    assert reply.usage.total_tokens > 0


async def test_a_request_succeeds_after_two_failures(llmock: LLMock, model: ChatModel) -> None:
    llmock.fail(500, times=2)
    await collect(model, request())
    llmock.assert_resilient()


async def test_a_rate_limit_is_waited_for(llmock: LLMock, model: ChatModel) -> None:
    llmock.rate_limit(times=1, retry_after=0.1)
    await collect(model, request())
    llmock.assert_resilient()


@pytest.mark.parametrize("fault", ["disconnect", "truncate"])
async def test_a_broken_stream_is_an_error_and_not_a_reply(
    llmock: LLMock, model: ChatModel, fault: str
) -> None:
    llmock.reply("A long enough answer to be broken in the middle of it all.")
    getattr(llmock, fault)(times=3)
    with pytest.raises(ModelError) as caught:
        await collect(model, request())
    assert caught.value.kind is ModelErrorKind.CUT_OFF


async def test_an_overflow_is_recognised(llmock: LLMock, model: ChatModel) -> None:
    llmock.context_overflow()
    with pytest.raises(ModelError) as caught:
        await collect(model, request())
    assert caught.value.kind is ModelErrorKind.CONTEXT_OVERFLOW
