"""Opens the reranker of the settings."""

from __future__ import annotations

from contextlib import AsyncExitStack

from strata.shared.search.reranking.base import TEXT_TOKENS, Reranker
from strata.shared.search.reranking.result_order import Reranking
from strata.shared.search.reranking.settings import RerankingServiceSettings
from strata.shared.shared_resources import SharedResources
from strata.shared.telemetry import Telemetry

_MS = 1000


async def open_reranking(
    settings: RerankingServiceSettings,
    shared_resources: SharedResources,
    telemetry: Telemetry,
    stack: AsyncExitStack,
) -> Reranking:
    """Returns the reranking of the settings; by default one that does nothing.

    Args:
        settings: The service's settings.
        shared_resources: Resources of the process: all services share one model.
        telemetry: Registry of the metrics.
        stack: Releases the model.

    Raises:
        FailedPreconditionError: ``MODEL_NOT_CONFIGURED``: the folder cannot be used.
    """
    path = settings.reranker_path
    if path is None:
        return Reranking.off()

    async def make(closing: AsyncExitStack) -> Reranker:
        from strata.shared.search.reranking.cross_encoder import (  # noqa: PLC0415 - loads onnxruntime
            CrossEncoder,
        )

        model = await CrossEncoder.load(
            path, sha256=settings.reranker_sha256, text_tokens=TEXT_TOKENS
        )
        closing.push_async_callback(model.close)
        return model

    key = ("reranker", path, settings.reranker_sha256)
    return Reranking(
        await shared_resources.share(key, make, stack),
        candidates=settings.reranker_candidates,
        budget=settings.reranker_budget_ms / _MS,
        telemetry=telemetry,
    )
