"""Settings of the recall service, prefix ``STRATA_RECALL_``."""

from __future__ import annotations

from pydantic import Field

from strata.shared.search.reranking.settings import RerankingServiceSettings
from strata.shared.settings import settings_config


class RecallSettings(RerankingServiceSettings):
    """Settings of the recall service."""

    model_config = settings_config("recall")

    port: int = Field(default=7603, ge=0, le=65535, description="Port; 0 lets the system choose.")
    search_language: str = Field(
        default="english",
        pattern=r"^[a-z_]{1,63}$",
        description="PostgreSQL text-search configuration of conversations that name none.",
    )
    index_messages: bool = Field(
        default=True, description="Index messages for search by meaning; otherwise only by words."
    )
