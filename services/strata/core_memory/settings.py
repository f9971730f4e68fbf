"""Settings of the core memory room, prefix ``STRATA_CORE_MEMORY_``."""

from __future__ import annotations

from pydantic import Field

from strata.shared.settings import RoomSettings, room_config


class CoreMemorySettings(RoomSettings):
    """What the core memory room can be told from outside."""

    model_config = room_config("core_memory")

    port: int = Field(default=7602, ge=0, le=65535, description="Port; 0 lets the system choose.")
    pool_size: int = Field(default=10, gt=0, description="Database connections at most.")
    request_days: int = Field(
        default=7, gt=0, description="Days for which a repeated request_id is recognised."
    )
