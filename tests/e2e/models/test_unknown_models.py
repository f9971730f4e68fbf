"""A handle is refused only if its provider does not have the model."""

from __future__ import annotations

import pytest

from doubles.http_server import HttpRequest, HttpResponse
from doubles.model_server import ModelServer
from doubles.script import Dialect
from strata.agent_loop.models.factory import ModelFactory
from strata.agent_loop.models.provider import ModelProvider
from strata.agent_loop.models.registry import ModelEndpoint, ModelRegistry
from strata.protocol.errors import InvalidArgumentError


def provider_of(
    factory: ModelFactory, url: str, dialect: Dialect, models: tuple[str, ...] = ()
) -> ModelProvider:
    endpoint = ModelEndpoint("here", dialect, url, models=models)
    return ModelProvider(ModelRegistry([endpoint]), factory)


def url_of(server: ModelServer, dialect: Dialect) -> str:
    return server.anthropic_url if dialect == "anthropic" else server.openai_url


async def test_a_model_that_the_provider_does_not_have_is_refused_with_near_names(
    factory: ModelFactory, dialect: Dialect
) -> None:
    async with ModelServer(models=["big", "small"]) as server:
        provider = provider_of(factory, url_of(server, dialect), dialect)
        await provider.check_listed("here/small")
        await provider.check_listed("")
        with pytest.raises(InvalidArgumentError) as refused:
            await provider.check_listed("here/smal")
    [violation] = refused.value.violations
    assert violation.field == "model.handle"
    assert "here/small" in violation.description


async def test_an_unlisted_alias_of_the_provider_passes(
    factory: ModelFactory, dialect: Dialect
) -> None:
    class WithAlias(ModelServer):
        async def _handle(self, request: HttpRequest) -> HttpResponse:
            if request.path == "/v1/models/latest":
                return HttpResponse(200, {"id": "big", "object": "model", "type": "model"})
            return await super()._handle(request)

    async with WithAlias(models=["big"]) as server:
        await provider_of(factory, url_of(server, dialect), dialect).check_listed("here/latest")


async def test_an_unreachable_provider_refuses_no_model(
    factory: ModelFactory, dialect: Dialect
) -> None:
    async with ModelServer(models=[]) as empty:
        provider = provider_of(factory, url_of(empty, dialect), dialect)
        await provider.check_listed("here/any")
    # The server is closed by now.
    await provider.check_listed("here/any")


async def test_a_model_named_in_the_settings_is_not_checked(
    factory: ModelFactory, dialect: Dialect
) -> None:
    async with ModelServer(models=["big"]) as server:
        provider = provider_of(factory, url_of(server, dialect), dialect, models=("hidden",))
        await provider.check_listed("here/hidden")
