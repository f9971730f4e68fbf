"""Settings of the archival room, prefix ``STRATA_ARCHIVAL_``."""

from __future__ import annotations

from pydantic import Field

from strata.shared.reranking.opening import RerankingRoomSettings
from strata.shared.settings import room_config


class ArchivalSettings(RerankingRoomSettings):
    """What the archival room can be told from outside."""

    model_config = room_config("archival")

    port: int = Field(default=7604, ge=0, le=65535, description="Port; 0 lets the system choose.")
    pool_size: int = Field(default=10, gt=0, description="Database connections at most.")
    passage_token_limit: int = Field(default=8192, gt=0, description="Most tokens of one passage.")
    index_batch: int = Field(default=128, gt=0, description="Passages indexed at a time.")
    index_file_batch: int = Field(
        default=8, gt=0, description="Chunks of files indexed at a time, between passages."
    )
    request_days: int = Field(
        default=7, gt=0, description="Days for which a repeated request_id is recognised."
    )
    expiry_batch: int = Field(
        default=500, gt=0, description="Expired passages destroyed in one transaction."
    )
    expiry_poll_s: float = Field(
        default=30.0, gt=0, description="Seconds between two looks for expired passages."
    )
