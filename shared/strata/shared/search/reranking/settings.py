"""Settings of a service whose search can have a reranker."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from strata.shared.search.service_settings import SearchingServiceSettings


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
