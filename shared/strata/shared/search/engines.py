"""Opens the embedding models and the vector index that the settings name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from strata.shared.partitions import DEFAULT_PARTITION
from strata.shared.search.embedding import CachingEmbedder, Embedder, EmbeddingModels, ModelInfo
from strata.shared.search.embedding.base import (
    ENGLISH_DIM,
    ENGLISH_MODEL,
    MULTILINGUAL_DIM,
    MULTILINGUAL_MODEL,
    MULTILINGUAL_UNRELATED,
)
from strata.shared.search.embedding.query_priority import QueriesFirst
from strata.shared.search.fusion import FusionConfig
from strata.shared.search.service_settings import EmbeddingEndpoint, SearchingServiceSettings
from strata.shared.search.vectors.client import connect
from strata.shared.search.vectors.index import VectorIndex
from strata.shared.search.vectors.partition import PartitionIndex
from strata.shared.search.vectors.qdrant import QdrantConfig, QdrantIndex
from strata.shared.shared_resources import SharedResources

EMBEDDING_RETRIES = 4
"""Retries after an endpoint fails or limits the rate: with the pauses of the SDK, some seconds."""


async def open_models(
    settings: SearchingServiceSettings, shared_resources: SharedResources, stack: AsyncExitStack
) -> EmbeddingModels:
    """Returns the models of the settings; the default one is opened.

    Each has a cache, and the local model gives queries priority.

    Args:
        settings: The service's settings.
        shared_resources: Resources of the process.
        stack: Releases the models.

    Raises:
        FailedPreconditionError: The weights are missing.
        DataLossError: The weights do not match this release.
    """
    entries: list[tuple[ModelInfo, Callable[[], Awaitable[Embedder]]]] = []
    for endpoint in _endpoints(settings):
        info = ModelInfo(endpoint.name, endpoint.dim, unrelated=endpoint.unrelated_cosine)
        entries.append((info, partial(_remote, endpoint, settings, shared_resources, stack)))
    multilingual = partial(open_local_embedder, shared_resources, stack)
    info = ModelInfo(MULTILINGUAL_MODEL, MULTILINGUAL_DIM, unrelated=MULTILINGUAL_UNRELATED)
    entries.append((info, multilingual))
    english = partial(open_english_embedder, settings.embedding_model_path, shared_resources, stack)
    entries.append((ModelInfo(ENGLISH_MODEL, ENGLISH_DIM), english))
    models = EmbeddingModels(settings.default_embedding_model, entries)
    await models.get(models.default.id)
    return models


async def open_embedder(
    settings: SearchingServiceSettings, shared_resources: SharedResources, stack: AsyncExitStack
) -> Embedder:
    """Returns the default model alone; see `open_models`."""
    models = await open_models(settings, shared_resources, stack)
    return await models.get(models.default.id)


async def open_vectors(
    settings: SearchingServiceSettings, shared_resources: SharedResources, stack: AsyncExitStack
) -> VectorIndex:
    """Returns the vector index, which connects at the first call.

    Partitions other than the default one have their own collections in the same engine.

    Args:
        settings: The service's settings.
        shared_resources: Resources of the process.
        stack: Releases the index.
    """
    address = (
        settings.qdrant_url,
        settings.qdrant_api_key or None,
        settings.qdrant_replication_factor,
        settings.search_floor,
    )

    async def make(closing: AsyncExitStack) -> VectorIndex:
        url, key, replicas, floor = address
        config = QdrantConfig(replication_factor=replicas, fusion=FusionConfig(floor=floor))
        index = QdrantIndex(connect(url, key), config)
        closing.push_async_callback(index.close)
        return index

    index = await shared_resources.share(("vectors", *address), make, stack)
    if settings.partition == DEFAULT_PARTITION:
        return index
    return PartitionIndex(index, settings.partition)


def _endpoints(settings: SearchingServiceSettings) -> list[EmbeddingEndpoint]:
    endpoints = list(settings.embedding_models)
    if settings.embedding_provider == "openai":
        endpoints.append(
            EmbeddingEndpoint(
                name=settings.embedding_model,
                dim=settings.embedding_dim,
                base_url=settings.embedding_base_url,
                api_key=settings.embedding_api_key,
            )
        )
    return endpoints


async def open_local_embedder(shared_resources: SharedResources, stack: AsyncExitStack) -> Embedder:
    """Returns the default embedding model of this machine; the services of a process share it.

    Args:
        shared_resources: Resources of the process.
        stack: Releases the model.
    """

    async def make(closing: AsyncExitStack) -> Embedder:
        from strata.shared.search.embedding.multilingual import (  # noqa: PLC0415 - loads onnxruntime
            MultilingualEmbedder,
        )

        local = await MultilingualEmbedder.load()
        closing.push_async_callback(local.close)
        return CachingEmbedder(QueriesFirst(local, local.documents_at_once, local.cores_wanted))

    return await shared_resources.share(("embedder", MULTILINGUAL_MODEL), make, stack)


async def open_english_embedder(
    path: Path | None, shared_resources: SharedResources, stack: AsyncExitStack
) -> Embedder:
    """Returns the English model of this machine; the services of a process share it.

    Args:
        path: File of the model; None for the packaged one.
        shared_resources: Resources of the process.
        stack: Releases the model.
    """

    async def make(closing: AsyncExitStack) -> Embedder:
        from strata.shared.search.embedding.minilm import (  # noqa: PLC0415 - loads onnxruntime
            MiniLmEmbedder,
        )

        local = await MiniLmEmbedder.load(path)
        closing.push_async_callback(local.close)
        return CachingEmbedder(QueriesFirst(local, local.documents_at_once, local.cores_wanted))

    return await shared_resources.share(("embedder", ENGLISH_MODEL, path), make, stack)


async def _remote(
    endpoint: EmbeddingEndpoint,
    settings: SearchingServiceSettings,
    shared_resources: SharedResources,
    stack: AsyncExitStack,
) -> Embedder:
    async def make(closing: AsyncExitStack) -> Embedder:
        from openai import AsyncOpenAI  # noqa: PLC0415 - slow to import, seldom needed

        from strata.shared.search.embedding.openai_compatible import (  # noqa: PLC0415 - needs the SDK
            OpenAiEmbedder,
            OpenAiEmbeddingModel,
            TimedHttpClient,
        )
        from strata.shared.web.system_certificates import (  # noqa: PLC0415 - needs the SDK's HTTP
            system_ssl_context,
        )

        client = AsyncOpenAI(
            api_key=endpoint.api_key or "none",
            base_url=endpoint.base_url,
            timeout=settings.embedding_timeout_s,
            max_retries=EMBEDDING_RETRIES,
            http_client=TimedHttpClient(settings.embedding_timeout_s, verify=system_ssl_context()),
        )
        closing.push_async_callback(client.close)
        model = OpenAiEmbeddingModel(
            name=endpoint.model or endpoint.name,
            model_id=endpoint.name,
            dim=endpoint.dim,
            max_tokens=endpoint.max_tokens,
            request_dim=endpoint.send_dimensions,
            query_prefix=endpoint.query_prefix,
            document_prefix=endpoint.document_prefix,
        )
        return CachingEmbedder(OpenAiEmbedder(client, model))

    key = ("embedder", endpoint.model_dump_json(), settings.embedding_timeout_s)
    return await shared_resources.share(key, make, stack)
