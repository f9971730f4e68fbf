"""Settings of the recall service, prefix ``STRATA_RECALL_``."""

from __future__ import annotations

from pydantic import Field

from strata.shared.search.reranking.factory import RerankingServiceSettings
from strata.shared.settings import settings_config


class RecallSettings(RerankingServiceSettings):
    """Settings of the recall service."""

    model_config = settings_config("recall")

    port: int = Field(default=7603, ge=0, le=65535, description="Port; 0 lets the system choose.")
    pool_size: int = Field(default=10, gt=0, description="Database connections at most.")
    search_language: str = Field(
        default="english",
        pattern=r"^[a-z_]{1,63}$",
        description="PostgreSQL text-search configuration of conversations that name none.",
    )
    index_messages: bool = Field(
        default=True, description="Index messages for search by meaning; otherwise only by words."
    )
    retention_batch: int = Field(
        default=200,
        gt=0,
        description="Messages per transaction of the retention worker, which deletes old ones.",
    )
    retention_every_s: float = Field(
        default=3600.0, gt=0, description="Seconds between two runs of the retention worker."
    )
    index_batch: int = Field(default=32, gt=0, description="Messages indexed per step.")
