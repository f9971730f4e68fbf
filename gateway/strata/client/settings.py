"""What a client can be told from outside: ``STRATA_…`` without a room's name."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class ClientSettings(BaseSettings):
    """Where Strata is."""

    model_config = SettingsConfigDict(env_prefix="STRATA_", extra="ignore", frozen=True)

    address: str = Field(
        default="", description="host:port of the gateway; unset means the one of the data folder."
    )
    api_key: str = Field(
        default="", repr=False, description="API key; unset means the one of the data folder."
    )
    data: Path | None = Field(
        default=None, description="The data folder; unset means the user's data directory."
    )
