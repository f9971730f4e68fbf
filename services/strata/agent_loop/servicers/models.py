"""ModelService: which chat models there are."""

from __future__ import annotations

from typing import Any

from strata.agent_loop.models.factory import EndpointModels
from strata.agent_loop.models.registry import ModelEndpoint
from strata.agent_loop.providers import HOW_TO_CONFIGURE, ModelProvider
from strata.api.agent_loop.v1 import model_service_pb2 as pb
from strata.api.agent_loop.v1 import model_service_pb2_grpc as pb_grpc

Context = Any


class ModelServicer(pb_grpc.ModelServiceServicer):
    """Lists models. Keys per project are not built yet."""

    def __init__(self, provider: ModelProvider) -> None:
        self._provider = provider

    async def ListModels(
        self, request: pb.ListModelsRequest, context: Context
    ) -> pb.ListModelsResponse:
        """Lists the models of the configured endpoints, with the endpoints that do not answer."""
        listed = await self._provider.list_models()
        default = await self._provider.default_handle()
        endpoints = {endpoint.name: endpoint for endpoint in self._provider.registry.endpoints}
        models = {
            model.handle: model
            for answer in listed
            for model in _models(answer, endpoints[answer.endpoint], default)
        }
        return pb.ListModelsResponse(
            models=[models[handle] for handle in sorted(models)],
            endpoints=[_endpoint(answer, endpoints[answer.endpoint]) for answer in listed],
            notice="" if default else HOW_TO_CONFIGURE,
        )


def _models(answer: EndpointModels, endpoint: ModelEndpoint, default: str) -> list[pb.Model]:
    windows = {model.model: model.context_window for model in answer.models}
    # A model that is configured by name is there even while its endpoint is silent.
    names = dict.fromkeys((*endpoint.models, *windows))
    if default.startswith(f"{endpoint.name}/"):
        names.setdefault(default.partition("/")[2])
    return [
        pb.Model(
            handle=endpoint.handle(name),
            provider=endpoint.name,
            name=name,
            endpoint_type=endpoint.type.value,
            context_window=windows.get(name) or endpoint.context_window,
            is_default=endpoint.handle(name) == default,
        )
        for name in names
    ]


def _endpoint(answer: EndpointModels, endpoint: ModelEndpoint) -> pb.ModelEndpoint:
    return pb.ModelEndpoint(
        name=endpoint.name,
        endpoint_type=endpoint.type.value,
        base_url=endpoint.base_url,
        reachable=answer.error is None,
        error=answer.error.message if answer.error is not None else "",
    )
