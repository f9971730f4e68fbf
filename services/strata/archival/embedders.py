"""Makes the embedding model that the settings ask for."""

from __future__ import annotations

from contextlib import AsyncExitStack

from strata.archival.courtesy import QuestionsFirst
from strata.archival.settings import ArchivalSettings
from strata.shared.embedding import CachingEmbedder, Embedder


async def make_embedder(settings: ArchivalSettings, stack: AsyncExitStack) -> Embedder:
    """Returns the model, with a cache in front; a local one serves searches first.

    Args:
        settings: The room's settings.
        stack: Closes the model.

    Raises:
        FailedPreconditionError: The weights are missing.
        DataLossError: The weights are not those of this release.
    """
    if settings.embedding_provider == "minilm":
        from strata.shared.embedding.minilm import MiniLmEmbedder  # noqa: PLC0415 - loads onnxruntime

        local = await MiniLmEmbedder.load(settings.embedding_model_path)
        stack.push_async_callback(local.close)
        return CachingEmbedder(QuestionsFirst(local))
    from openai import AsyncOpenAI  # noqa: PLC0415 - slow to import, seldom needed

    from strata.shared.embedding.openai_compatible import (  # noqa: PLC0415 - needs the SDK
        OpenAiEmbedder,
        OpenAiEmbeddingModel,
    )

    client = AsyncOpenAI(
        api_key=settings.embedding_api_key or "none", base_url=settings.embedding_base_url
    )
    stack.push_async_callback(client.close)
    model = OpenAiEmbeddingModel(name=settings.embedding_model, dim=settings.embedding_dim)
    return CachingEmbedder(OpenAiEmbedder(client, model))
