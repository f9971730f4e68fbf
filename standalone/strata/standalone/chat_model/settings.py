"""Settings of the local demo model."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from strata.shared.settings import EnvironmentSettings


class LocalDemoMode(StrEnum):
    """Whether the local demo model may be fetched and run."""

    AUTO = "auto"
    OFF = "off"


class LocalDemoSettings(EnvironmentSettings):
    """Settings of `STRATA_LOCAL_DEMO` and `STRATA_LOCAL_DEMO_*`.

    Attributes:
        local_demo: `auto` uses the demo model if there is no other model; `off` never does.
        local_demo_url: URL of the model file, tried before the packages.
        local_demo_cache: Folder of the model and its runtime; by default in the user's cache.
        local_demo_context_tokens: Maximum number of tokens of prompt and reply together. Each 1,000
            take 29 MB of memory.
    """

    model_config = SettingsConfigDict(env_prefix="STRATA_", extra="ignore")

    local_demo: LocalDemoMode = LocalDemoMode.AUTO
    local_demo_url: str | None = None
    local_demo_cache: Path | None = None
    local_demo_context_tokens: int = Field(default=8192, ge=2048, le=32768)
