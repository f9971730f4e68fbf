"""Real SDKs against a real socket: one suite for all wire protocols."""

from collections.abc import AsyncIterator

import pytest

from doubles.bench import Bench
from doubles.model_server import ModelServer
from doubles.script import Dialect
from strata.agent_loop.models.factory import ModelFactory
from strata.agent_loop.models.streaming import RetryPolicy


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as running:
        yield running


@pytest.fixture
async def factory() -> AsyncIterator[ModelFactory]:
    async with ModelFactory(RetryPolicy(first_delay=0.01)) as running:
        yield running


@pytest.fixture
def bench(server: ModelServer, factory: ModelFactory, dialect: Dialect) -> Bench:
    return Bench(server, factory, dialect)


@pytest.fixture
def openai_bench(server: ModelServer, factory: ModelFactory) -> Bench:
    return Bench(server, factory, "openai")


@pytest.fixture
def anthropic_bench(server: ModelServer, factory: ModelFactory) -> Bench:
    return Bench(server, factory, "anthropic")


@pytest.fixture
def responses_bench(server: ModelServer, factory: ModelFactory) -> Bench:
    return Bench(server, factory, "openai_responses")
