"""Settings of the tool runner, prefix ``STRATA_TOOL_RUNNER_``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from strata.shared.sandbox import Isolation
from strata.shared.settings import MIB, ServiceSettings, settings_config
from strata.shared.web.addresses import read_networks


class ToolRunnerSettings(ServiceSettings):
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
    egress: bool = Field(
        default=True,
        description="Whether calls get a proxy, through which they reach the hosts in the"
        " allowed_hosts of their tool. False refuses calls with hosts.",
    )
    egress_private_networks: tuple[str, ...] = Field(
        default=(),
        description="Private networks that tools may reach as well, through their allowed_hosts, as"
        ' a JSON list: ["10.1.0.0/16"]. Metadata services stay blocked.',
    )
    egress_ports: tuple[int, ...] = Field(
        default=(80, 443), description="Ports that tools may connect to, as a JSON list."
    )
    egress_bytes: int = Field(
        default=64 * MIB,
        gt=0,
        description="Bytes that one tool call may send and receive together.",
    )
    egress_ca_file: Path | None = Field(
        default=None,
        description="PEM file with the CA certificates that tools verify servers with; unset means"
        " those of the machine.",
    )

    @property
    def minimum(self) -> Isolation:
        """The weakest isolation with which calls are run."""
        return Isolation[self.minimum_isolation.upper()]

    @field_validator("egress_private_networks")
    @classmethod
    def _check_private_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        read_networks(networks)
        return networks
