"""Settings of a service whose search can have a reranker, and a function that opens it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from pydantic import Field

from strata.shared.search.reranking.base import TEXT_TOKENS, Reranker
from strata.shared.search.reranking.result_order import Reranking
from strata.shared.search.service_settings import SearchingServiceSettings
from strata.shared.shared_resources import SharedResources
from strata.shared.telemetry import Telemetry

_MS = 1000


class RerankingServiceSettings(SearchingServiceSettings):
    """Fields of the services whose search can have a reranker."""

    reranker_path: Path | None = Field(
        default=None,
        description=(
            "Folder of a cross-encoder that reranks the best results (`model.onnx`, and "
            "`vocab.txt` or `tokenizer.json`); unset means none."
        ),
    )
    reranker_sha256: str = Field(
        default="",
        pattern=r"^([0-9a-fA-F]{64})?$",
        description="SHA-256 that its `model.onnx` must have; unset accepts any.",
    )
    reranker_candidates: int = Field(
        default=30, gt=0, le=100, description="How many of the best results it reranks."
    )
    reranker_budget_ms: int = Field(
        default=2000,
        gt=0,
        description=(
            "Milliseconds that a search waits for it; after that the order is not changed."
        ),
    )


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
