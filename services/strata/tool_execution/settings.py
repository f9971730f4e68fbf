"""Settings of the tool-execution service, prefix ``STRATA_TOOL_EXECUTION_``."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, field_validator, model_validator

from strata.shared.secrets import Envelope, open_envelope
from strata.shared.settings import MIB, ServiceSettings, settings_config
from strata.shared.web.addresses import read_networks
from strata.shared.web.errors import ForbiddenUrlError
from strata.shared.web.url_guard import parse_url
from strata.tool_execution.domain.web import ProviderName
from strata.tool_execution.egress.fields import EgressFields
from strata.tool_execution.mcp.program_user import PROGRAM_UID, PROGRAM_UIDS
from strata.tool_execution.sandbox.jail import JAIL_UID


class ToolExecutionSettings(EgressFields, ServiceSettings):
    """What the tool-execution service can be told from outside."""

    model_config = settings_config("tool_execution")

    port: int = Field(default=7605, ge=0, le=65535, description="Port; 0 lets the system choose.")
    tool_timeout_s: float = Field(
        default=60.0, gt=0, description="Time that one call of a built-in tool may take, seconds."
    )
    agent_reply_timeout_s: float = Field(
        default=300.0,
        gt=0,
        description="Time that a tool waits for the answer of another agent, seconds; the agent"
        " goes on after it.",
    )
    max_parallel_calls: int = Field(
        default=16, gt=0, description="Calls of one reply that run at the same time at most."
    )
    web_private_networks: tuple[str, ...] = Field(
        default=(),
        description="Private networks that fetch_webpage may reach as well, such as a company's own"
        ' wiki, as a JSON list: ["10.1.0.0/16"]. Metadata services stay closed.',
    )
    web_ports: tuple[int, ...] = Field(
        default=(80, 443), description="Ports that fetch_webpage may connect to, as a JSON list."
    )
    web_timeout_s: float = Field(
        default=20.0, gt=0, description="Time for a page or a search with all redirects, seconds."
    )
    web_page_bytes: int = Field(
        default=2 * MIB, gt=0, description="Bytes of a page that are read; the rest is cut off."
    )
    web_pdf_bytes: int = Field(
        default=16 * MIB, gt=0, description="Bytes of the largest PDF that is read from the web."
    )
    web_search_provider: ProviderName | None = Field(
        default=None, description="Search engine of web_search; without one it says so."
    )
    web_search_api_key: SecretStr = Field(
        default=SecretStr(""), description="Key of the search engine; SearXNG needs none."
    )
    web_search_url: str = Field(
        default="", description="Root of the search engine's API; needed for SearXNG."
    )

    packages: bool = Field(
        default=True, description="Whether tools may have packages; they need packages_path too."
    )
    packages_path: Path | None = Field(
        default=None,
        description="Folder in which the packages of tools are kept; unset means that tools have"
        " none. It may be shared by replicas, and must be readable by the user that tools run as.",
    )
    packages_index_url: SecretStr = Field(
        default=SecretStr(""),
        description="Index that packages are taken from; empty means PyPI.",
    )
    packages_wheels: Path | None = Field(
        default=None, description="Folder with wheels to take packages from instead of an index."
    )
    packages_proxy: SecretStr = Field(
        default=SecretStr(""),
        description="Proxy that packages are fetched through, http://user:password@host:port.",
    )
    packages_no_proxy: str = Field(
        default="", description="Hosts that packages are fetched from without it, with commas."
    )
    packages_ca_file: Path | None = Field(
        default=None,
        description="Certificates, as PEM, that the index and the proxy are verified with.",
    )
    packages_system_certs: bool = Field(
        default=False,
        description="Whether they are verified with the certificates of this machine; those that"
        " come with uv otherwise.",
    )
    packages_timeout_s: float = Field(
        default=120.0, gt=0, description="Time that fetching a tool's packages may take, seconds."
    )
    packages_bytes: int = Field(
        default=512 * MIB, gt=0, description="Bytes that the packages of one tool may take."
    )
    packages_days: int = Field(
        default=30, gt=0, description="Days after which packages that no tool used are removed."
    )

    mcp_local: bool = Field(
        default=False,
        description="Defaults of MCP servers for the machine of one person: programs may be"
        " started, this machine and all ports reached. `strata up` and `strata run` set it.",
    )
    mcp_stdio: bool | None = Field(
        default=None,
        description="Whether MCP servers may be programs that are started on this host (stdio),"
        " with the rights of this process, or of a user of their own (mcp_stdio_uid) if it is root;"
        " unset means as mcp_local says.",
    )
    mcp_stdio_uid: int = Field(
        default=PROGRAM_UID,
        gt=0,
        description="First of the user ids, which are group ids as well, that these programs run"
        " as when this process is root; they never run as root. Every MCP server has its own. The"
        " program and what it reads must be open to all of these users.",
    )
    mcp_stdio_uids: int = Field(
        default=PROGRAM_UIDS,
        gt=0,
        description="How many such user ids there are, from mcp_stdio_uid on. When all are"
        " assigned, the server that was started longest ago and is not running loses its own, with"
        " its home folder.",
    )
    mcp_stdio_homes: Path | None = Field(
        default=None,
        description="Folder for the home folders that these programs then have, one per server,"
        " with the caches of npx and uvx; unset means a temporary one.",
    )
    mcp_private_networks: tuple[str, ...] | None = Field(
        default=None,
        description="Private networks in which MCP servers may be, as a JSON list:"
        ' ["10.1.0.0/16"]. Unset means none, or this machine with mcp_local.',
    )
    mcp_ports: tuple[int, ...] | None = Field(
        default=None,
        description="Ports that MCP servers may be reached at, as a JSON list. Unset means 80 and"
        " 443, or all with mcp_local.",
    )
    mcp_connect_timeout_s: float = Field(
        default=15.0, gt=0, description="Time to reach an MCP server and read its tools, seconds."
    )
    mcp_idle_s: float = Field(
        default=600.0, gt=0, description="Seconds without a call after which an MCP server is left."
    )
    mcp_max_connections: int = Field(
        default=64, gt=0, description="MCP servers that this process talks to at once at most."
    )
    mcp_message_bytes: int = Field(
        default=4 * MIB, gt=0, description="Bytes of the longest message of an MCP server."
    )

    pool_size: int = Field(default=10, gt=0, description="Database connections at most.")
    request_days: int = Field(
        default=7, gt=0, description="Days for which a repeated request_id is recognised."
    )
    embedding_model_path: Path | None = Field(
        default=None,
        description="File of the local model that tools are searched with; unset means the"
        " packaged one.",
    )
    master_keys: tuple[SecretStr, ...] = Field(
        default=(),
        description="Keys that the secrets of tools are encrypted with, as a JSON list, each 32"
        " bytes in Base64; the first one encrypts, all of them decrypt.",
    )
    master_keys_file: Path | None = Field(
        default=None, description="File to read those keys from instead, one per line."
    )

    def envelope(self) -> Envelope | None:
        """Returns what seals secrets; None if there is no master key.

        Raises:
            OSError: The file cannot be read.
            ValueError: A master key is none.
        """
        keys = [key.get_secret_value() for key in self.master_keys]
        return open_envelope(keys, self.master_keys_file)

    @property
    def mcp_starts_programs(self) -> bool:
        """Whether MCP servers may be started as programs."""
        return self.mcp_local if self.mcp_stdio is None else self.mcp_stdio

    @property
    def mcp_networks(self) -> tuple[str, ...]:
        """The private networks in which MCP servers may be."""
        if self.mcp_private_networks is not None:
            return self.mcp_private_networks
        return ("127.0.0.0/8", "::1/128") if self.mcp_local else ()

    @property
    def mcp_open_ports(self) -> Collection[int]:
        """The ports that MCP servers may be reached at."""
        if self.mcp_ports is not None:
            return self.mcp_ports
        return range(1, 65_536) if self.mcp_local else (80, 443)

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
