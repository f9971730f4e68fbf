"""What the runner of sandboxed code can be told from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from strata.shared.settings import ServiceSettings, settings_config
from strata.tool_execution.domain.sandbox import Isolation
from strata.tool_execution.egress.fields import EgressFields


class ToolRunnerSettings(EgressFields, ServiceSettings):
    """What the runner of sandboxed code can be told from outside."""

    model_config = settings_config("tool_runner")

    packages_path: Path | None = Field(
        default=None,
        description="Folder in which the tool-execution service keeps the packages of tools, under"
        " the same path as there; it is only read. Unset means that tools have none.",
    )
    minimum_isolation: Literal["landlock", "namespaces"] = Field(
        default="landlock", description="The least isolation with which calls are run at all."
    )
    parallel_calls: int = Field(default=32, gt=0, description="Calls at a time; others wait.")

    @property
    def minimum(self) -> Isolation:
        """The least isolation with which calls are run at all."""
        return Isolation[self.minimum_isolation.upper()]
