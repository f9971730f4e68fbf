"""Settings of the tool runner, prefix ``STRATA_TOOL_RUNNER_``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from strata.shared.sandbox import Isolation
from strata.shared.settings import ServiceSettings, settings_config
from strata.tool_runner.egress.fields import EgressFields


class ToolRunnerSettings(EgressFields, ServiceSettings):
    """Settings of the tool runner."""

    model_config = settings_config("tool_runner")

    packages_path: Path | None = Field(
        default=None,
        description="Folder in which the tool-execution service keeps the packages of tools; the"
        " path must be the same there. The runner only reads it. Unset means no packages.",
    )
    minimum_isolation: Literal["landlock", "namespaces"] = Field(
        default="landlock", description="The weakest isolation with which calls are run."
    )
    parallel_calls: int = Field(
        default=32, gt=0, description="Maximum number of concurrent calls; others wait."
    )

    @property
    def minimum(self) -> Isolation:
        """The weakest isolation with which calls are run."""
        return Isolation[self.minimum_isolation.upper()]
