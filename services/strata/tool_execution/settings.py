"""Settings of the tool-execution service, prefix ``STRATA_TOOL_EXECUTION_``."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, field_validator, model_validator

from strata.shared.sandbox import JAIL_UID
from strata.shared.secrets import MasterKeySettings
from strata.shared.settings import MIB, RunServerLimits, settings_config
from strata.shared.web.addresses import read_networks
from strata.shared.web.errors import ForbiddenUrlError
from strata.shared.web.host_patterns import problem_of
from strata.shared.web.url_guard import parse_url
from strata.tool_execution.domain.network_policy import NetworkPolicy
from strata.tool_execution.domain.web import ProviderName

PROGRAM_UID = 64_178
"""The first user id, next to the one of jailed tools and outside the usual ranges."""
PROGRAM_UIDS = 1_000


class ToolExecutionSettings(MasterKeySettings):
    """Settings of the tool-execution service."""

    model_config = settings_config("tool_execution")

    port: int = Field(default=7605, ge=0, le=65535, description="Port; 0 lets the system choose.")
    limits: RunServerLimits = Field(default_factory=RunServerLimits, description="Server limits.")
    tool_timeout_s: float = Field(
        default=60.0, gt=0, description="Seconds that one call of a built-in tool may take."
    )
    agent_reply_timeout_s: float = Field(
        default=300.0,
        gt=0,
        description="Seconds that a tool waits for the answer of another agent; that agent"
        " continues after it.",
    )
    web_private_networks: tuple[str, ...] = Field(
        default=(),
        description="Private networks that fetch_webpage may reach as well, such as a company's own"
        ' wiki, as a JSON list: ["10.1.0.0/16"]. Metadata services stay blocked.',
    )
    web_ports: tuple[int, ...] = Field(
        default=(80, 443), description="Ports that fetch_webpage may connect to, as a JSON list."
    )
    web_timeout_s: float = Field(
        default=20.0, gt=0, description="Seconds for a page or a search, including redirects."
    )
    web_search_provider: ProviderName | None = Field(
        default=None,
        description="Search engine of web_search; without one the tool returns an error.",
    )
    web_search_api_key: SecretStr = Field(
        default=SecretStr(""), description="Key of the search engine; SearXNG needs none."
    )
    web_search_url: str = Field(
        default="", description="Root of the search engine's API; needed for SearXNG."
    )

    egress: bool = Field(
        default=True,
        description="Whether tools may have allowed_hosts and reach them. False switches network"
        " access off for all tools.",
    )
    egress_hosts: tuple[str, ...] = Field(
        default=(),
        description="Hosts that tools may list in allowed_hosts, as a JSON list:"
        ' ["api.example.com", "*.example.org"]. Empty means every public host.',
    )

    packages: bool = Field(
        default=True, description="Whether tools may have packages; needs packages_path as well."
    )
    packages_path: Path | None = Field(
        default=None,
        description="Folder of the packages of tools; unset means no packages. Replicas may share"
        " it. The user that tools run as must be able to read it.",
    )
    packages_index_url: SecretStr = Field(
        default=SecretStr(""),
        description="Package index; empty means PyPI.",
    )
    packages_wheels: Path | None = Field(
        default=None, description="Folder with wheels to use instead of an index."
    )
    packages_proxy: SecretStr = Field(
        default=SecretStr(""),
        description="Proxy for downloading packages, http://user:password@host:port.",
    )
    packages_no_proxy: str = Field(
        default="", description="Hosts that are reached without this proxy, separated by commas."
    )
    packages_ca_file: Path | None = Field(
        default=None,
        description="PEM file with the CA certificates for the index and the proxy.",
    )
    packages_system_certs: bool = Field(
        default=False,
        description="Whether they are verified with the certificates of the machine instead of"
        " those of uv.",
    )
    packages_timeout_s: float = Field(
        default=120.0, gt=0, description="Seconds that downloading a tool's packages may take."
    )
    packages_bytes: int = Field(
        default=512 * MIB, gt=0, description="Maximum size in bytes of the packages of one tool."
    )
    packages_days: int = Field(
        default=30, gt=0, description="Days after which unused packages are removed."
    )

    mcp_local: bool = Field(
        default=False,
        description="MCP defaults for a personal machine: MCP servers may be programs, and this"
        " machine and all ports can be reached. `strata up` and `strata run` set it.",
    )
    mcp_stdio: bool | None = Field(
        default=None,
        description="Whether MCP servers may be programs on this host (stdio). They have the"
        " privileges of this process, or of separate users (mcp_stdio_uid) if it is root. Unset"
        " means the value of mcp_local.",
    )
    mcp_stdio_uid: int = Field(
        default=PROGRAM_UID,
        gt=0,
        description="First user id of these programs if this process is root; also the group id."
        " Every MCP server has its own, never root. All of these users must be able to read the"
        " program and its files.",
    )
    mcp_stdio_uids: int = Field(
        default=PROGRAM_UIDS,
        gt=0,
        description="Number of such user ids, from mcp_stdio_uid on. When all are assigned, the"
        " server that was started longest ago and is not running loses its user id and its home"
        " folder.",
    )
    mcp_stdio_homes: Path | None = Field(
        default=None,
        description="Folder for the home folders of these users, which hold the caches of npx and"
        " uvx; unset means a temporary folder.",
    )
    mcp_private_networks: tuple[str, ...] | None = Field(
        default=None,
        description="Private networks of MCP servers, as a JSON list:"
        ' ["10.1.0.0/16"]. Unset means none, or this machine with mcp_local.',
    )
    mcp_ports: tuple[int, ...] | None = Field(
        default=None,
        description="Ports of MCP servers, as a JSON list. Unset means 80 and 443, or all ports"
        " with mcp_local.",
    )
    mcp_connect_timeout_s: float = Field(
        default=15.0, gt=0, description="Seconds to connect to an MCP server and read its tools."
    )
    mcp_max_connections: int = Field(
        default=64, gt=0, description="Maximum number of MCP sessions of this process."
    )

    embedding_model_path: Path | None = Field(
        default=None,
        description="File of the local embedding model for tool search; unset means the packaged"
        " model.",
    )

    @property
    def mcp_starts_programs(self) -> bool:
        """Whether MCP servers may be programs on this host."""
        return self.mcp_local if self.mcp_stdio is None else self.mcp_stdio

    @property
    def mcp_networks(self) -> tuple[str, ...]:
        """The private networks of MCP servers."""
        if self.mcp_private_networks is not None:
            return self.mcp_private_networks
        return ("127.0.0.0/8", "::1/128") if self.mcp_local else ()

    @property
    def mcp_open_ports(self) -> Collection[int]:
        """The ports of MCP servers."""
        if self.mcp_ports is not None:
            return self.mcp_ports
        return range(1, 65_536) if self.mcp_local else (80, 443)

    @property
    def network_policy(self) -> NetworkPolicy:
        """The operator's policy for the network access of tools."""
        return NetworkPolicy(self.egress, self.egress_hosts)

    @field_validator("egress_hosts")
    @classmethod
    def _check_hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if problem := problem_of(host):
                raise ValueError(f"{host!r} {problem}")
        return hosts

    @field_validator("web_private_networks", "mcp_private_networks")
    @classmethod
    def _check_networks(cls, networks: tuple[str, ...] | None) -> tuple[str, ...] | None:
        read_networks(networks or ())
        return networks

    @model_validator(mode="after")
    def _check_users(self) -> Self:
        if JAIL_UID in range(self.mcp_stdio_uid, self.mcp_stdio_uid + self.mcp_stdio_uids):
            raise ValueError(
                f"mcp_stdio_uid to mcp_stdio_uid + mcp_stdio_uids must not contain {JAIL_UID},"
                " the user id of code of tools"
            )
        return self

    @model_validator(mode="after")
    def _check_search(self) -> Self:
        provider = self.web_search_provider
        if provider is ProviderName.SEARXNG:
            if not self.web_search_url:
                raise ValueError("web_search_provider searxng needs web_search_url")
        elif provider is not None and not self.web_search_api_key.get_secret_value():
            raise ValueError(f"web_search_provider {provider.value} needs web_search_api_key")
        if self.web_search_url:
            try:
                parse_url(self.web_search_url)
            except ForbiddenUrlError as error:
                raise ValueError(f"web_search_url: {error.message}") from None
        return self
