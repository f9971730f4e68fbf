"""Settings of the recall room, prefix ``STRATA_RECALL_``."""

from __future__ import annotations

from pydantic import Field

from strata.shared.settings import RoomSettings, room_config


class RecallSettings(RoomSettings):
    """What the recall room can be told from outside."""

    model_config = room_config("recall")

    port: int = Field(default=7603, ge=0, le=65535, description="Port; 0 lets the system choose.")
    pool_size: int = Field(default=10, gt=0, description="Database connections at most.")
    search_language: str = Field(
        default="english",
        pattern=r"^[a-z_]{1,63}$",
        description="PostgreSQL text-search configuration of conversations that name none.",
    )
