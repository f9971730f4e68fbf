"""Settings of the network access of tools, shared by the service and the tool runner."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field, field_validator

from strata.shared.settings import MIB
from strata.shared.web.addresses import read_networks
from strata.shared.web.host_patterns import problem_of


class EgressFields(BaseModel):
    """Settings of the hosts and ports that tools may reach."""

    egress: bool = Field(
        default=True,
        description="Whether tools may reach the hosts in their allowed_hosts, through a proxy."
        " False switches network access off for all tools.",
    )
    egress_hosts: tuple[str, ...] = Field(
        default=(),
        description="Hosts that tools may list in allowed_hosts, as a JSON list:"
        ' ["api.example.com", "*.example.org"]. Empty means every public host.',
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
