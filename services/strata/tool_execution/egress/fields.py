"""Settings of the network of tools: for the service, and for a runner in its place."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field, field_validator

from strata.shared.settings import MIB
from strata.shared.web.addresses import read_networks
from strata.tool_execution.domain.hosts import problem_of


class EgressFields(BaseModel):
    """What tools may reach."""

    egress: bool = Field(
        default=True,
        description="Whether tools may reach the hosts that they name in allowed_hosts, through a"
        " proxy of their own; false switches it off for all of them.",
    )
    egress_hosts: tuple[str, ...] = Field(
        default=(),
        description="Hosts that tools may name at all, as a JSON list:"
        ' ["api.example.com", "*.example.org"]. Empty means every public host.',
    )
    egress_private_networks: tuple[str, ...] = Field(
        default=(),
        description="Private networks that tools may reach as well, by hosts that they name, as a"
        ' JSON list: ["10.1.0.0/16"]. Metadata services stay closed.',
    )
    egress_ports: tuple[int, ...] = Field(
        default=(80, 443), description="Ports that tools may connect to, as a JSON list."
    )
    egress_bytes: int = Field(
        default=64 * MIB, gt=0, description="Bytes that one call of a tool may send and receive."
    )
    egress_ca_file: Path | None = Field(
        default=None,
        description="Certificates, as PEM, that tools verify servers with; unset means those of"
        " this machine.",
    )

    @field_validator("egress_hosts")
    @classmethod
    def _check_hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if problem := problem_of(host):
                raise ValueError(f"{host!r} {problem}")
        return hosts

    @field_validator("egress_private_networks")
    @classmethod
    def _check_private_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        read_networks(networks)
        return networks
