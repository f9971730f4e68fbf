"""Settings of the tool-execution room, prefix ``STRATA_TOOL_EXECUTION_``."""

from __future__ import annotations

from pydantic import Field

from strata.shared.settings import RoomSettings, room_config


class ToolExecutionSettings(RoomSettings):
    """What the tool-execution room can be told from outside."""

    model_config = room_config("tool_execution")

    port: int = Field(default=7605, ge=0, le=65535, description="Port; 0 lets the system choose.")
    tool_timeout_s: float = Field(
        default=60.0, gt=0, description="Time that one call of a built-in tool may take, seconds."
    )
    max_parallel_calls: int = Field(
        default=16, gt=0, description="Calls of one reply that run at the same time at most."
    )
