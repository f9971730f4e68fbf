"""ModelService: lists the chat models and stores their keys."""

from __future__ import annotations

from typing import Any

from strata.agent_loop.convert.model_keys import model_key
from strata.agent_loop.domain.model.keys import ModelKeyStore
from strata.agent_loop.models.dialects.key_forms import plain_key
from strata.agent_loop.models.dialects.table import dialect_of
from strata.agent_loop.models.factory import EndpointModels
from strata.agent_loop.models.keyring import Keyring
from strata.agent_loop.models.known_models import AS_OF
from strata.agent_loop.models.provider import HOW_TO_CONFIGURE, ModelProvider
from strata.agent_loop.models.registry import ModelEndpoint, ModelRegistry
from strata.agent_loop.servicers.call_usage import reported_usage
from strata.api.agent_loop.v1 import model_service_pb2 as pb
from strata.api.agent_loop.v1 import model_service_pb2_grpc as pb_grpc
from strata.protocol.errors import FailedPreconditionError, Reason

Context = Any


class ModelServicer(pb_grpc.ModelServiceServicer):
    """Lists models and stores model keys; keys are never returned.

    Args:
        provider: The models.
        keyring: Encrypts keys.
        keys: Stores the encrypted keys.
    """

    def __init__(self, provider: ModelProvider, keyring: Keyring, keys: ModelKeyStore) -> None:
        self._provider = provider
        self._keyring = keyring
        self._keys = keys

    async def ListModels(
        self, request: pb.ListModelsRequest, context: Context
    ) -> pb.ListModelsResponse:
        """Lists the models of the configured endpoints, and the endpoints that do not answer."""
        keys = await self._keys.of_project()
        endpoint_models = await self._provider.list_models(keys)
        default = await self._provider.default_handle(keys)
        endpoints = {endpoint.name: endpoint for endpoint in self._provider.registry.endpoints}
        models = {
            model.handle: model
            for answer in endpoint_models
            for model in _models(answer, endpoints[answer.endpoint], default)
        }
        return pb.ListModelsResponse(
            models=[models[handle] for handle in sorted(models)],
            endpoints=[_endpoint(answer, endpoints[answer.endpoint]) for answer in endpoint_models],
            notice="" if default else HOW_TO_CONFIGURE,
            known_models_date=AS_OF,
        )

    async def ProbeModel(
        self, request: pb.ProbeModelRequest, context: Context
    ) -> pb.ProbeModelResponse:
        """Probes a model and its server."""
        keys = await self._keys.of_project()
        async with reported_usage(context) as count:
            findings, problems = await self._provider.probe(
                request.handle, keys, ask=not request.skip_requests, count=count
            )
        windows = [finding.tokens for finding in findings if finding.name == "context window"]
        return pb.ProbeModelResponse(
            findings=[
                pb.ModelFinding(
                    name=finding.name,
                    value=finding.value,
                    source=finding.source,
                    tokens=finding.tokens,
                )
                for finding in findings
            ],
            problems=problems,
            context_window=min(windows, default=0),
        )

    async def PutModelKey(
        self, request: pb.PutModelKeyRequest, context: Context
    ) -> pb.PutModelKeyResponse:
        """Stores a key for the project or one agent; an empty one deletes it."""
        provider, agent_id = request.provider, request.agent_id
        endpoint = self._provider.registry.endpoint_of(f"{provider}/")
        key = model_key(request, dialect_of(endpoint.type).read_key if endpoint else plain_key)
        is_configured = endpoint is not None
        if key and is_configured:
            await self._keys.put(self._keyring.seal(provider, agent_id, key))
        # The key of an endpoint that is no longer configured can still be deleted.
        elif key or not (await self._keys.delete(provider, agent_id) or is_configured):
            raise _not_configured(provider, self._provider.registry)
        return pb.PutModelKeyResponse()


def _not_configured(provider: str, registry: ModelRegistry) -> FailedPreconditionError:
    names = ", ".join(endpoint.name for endpoint in registry.endpoints) or "none"
    return FailedPreconditionError(
        f"There is no model endpoint {provider!r}. Configured: {names}.",
        reason=Reason.MODEL_NOT_CONFIGURED,
        metadata={"provider": provider},
    )


def _models(answer: EndpointModels, endpoint: ModelEndpoint, default: str) -> list[pb.Model]:
    windows = {model.model: model.context_window for model in answer.models}
    # Models that are configured by name are listed even if their endpoint does not answer.
    names = dict.fromkeys((*endpoint.models, *windows))
    if default.startswith(f"{endpoint.name}/"):
        names.setdefault(default.partition("/")[2])
    return [_model(endpoint, name, windows.get(name), default) for name in names]


def _model(endpoint: ModelEndpoint, name: str, listed: int | None, default: str) -> pb.Model:
    limits = endpoint.documented_limits(name)
    sources = {
        "server": listed,
        "settings": endpoint.context_window,
        "table": limits.context_window if limits else None,
    }
    source, window = next(((who, tokens) for who, tokens in sources.items() if tokens), ("", 0))
    return pb.Model(
        handle=endpoint.handle(name),
        provider=endpoint.name,
        name=name,
        endpoint_type=endpoint.type,
        context_window=window or 0,
        context_window_source=source,
        max_output_tokens=limits.max_output_tokens if limits else 0,
        is_default=endpoint.handle(name) == default,
        images=endpoint.images,
    )


def _endpoint(answer: EndpointModels, endpoint: ModelEndpoint) -> pb.ModelEndpoint:
    return pb.ModelEndpoint(
        name=endpoint.name,
        endpoint_type=endpoint.type,
        base_url=endpoint.base_url,
        reachable=answer.error is None,
        error=answer.error.message if answer.error is not None else "",
    )
