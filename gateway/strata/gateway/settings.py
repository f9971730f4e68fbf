"""Settings of the gateway: ``STRATA_GATEWAY_…``."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import AliasChoices, Field, field_validator, model_validator

from strata.gateway.runs.explanation.prices import ModelPrice
from strata.shared.auth import public_key_of
from strata.shared.number_text import is_whole_number
from strata.shared.partitions import DEFAULT_PARTITION
from strata.shared.secrets import MasterKeySettings
from strata.shared.settings import MIB, ServerLimits, settings_config
from strata.shared.tls import ServerTls
from strata.shared.web.addresses import read_networks

DEFAULT_PORT = 7600
DEFAULT_HTTP_PORT = 7680
"""Preferred port for HTTP of a local Strata."""
DEFAULT_METRICS_PORT = 7690
"""Preferred port for metrics of a local Strata."""


class EdgeLimits(ServerLimits):
    """Limits of a server for untrusted clients."""

    max_message_bytes: int = Field(
        default=4 * MIB, gt=0, description="Largest request and response of a client."
    )
    max_in_flight_streams: int = Field(
        default=1024,
        gt=0,
        description="Maximum number of concurrent streams, such as followed runs.",
    )


class GatewaySettings(MasterKeySettings):
    """Settings of the gateway; times in seconds.

    By default it listens on 127.0.0.1:7600.
    """

    model_config = settings_config("gateway")

    port: int = Field(
        default=DEFAULT_PORT, ge=0, le=65535, description="Port; 0 lets the system choose."
    )
    http_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        validation_alias=AliasChoices("STRATA_GATEWAY_HTTP_PORT", "STRATA_HTTP_PORT", "http_port"),
        description="Port for HTTP: the API of OpenAI, the Connect protocol, gRPC-Web, MCP, A2A and"
        " the web console, with the same address and certificate as gRPC; 0 lets the system choose."
        " Unset means no HTTP; `strata up` takes 7680, or the next free port. Also"
        " STRATA_HTTP_PORT.",
    )
    metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        validation_alias=AliasChoices(
            "STRATA_GATEWAY_METRICS_PORT", "STRATA_METRICS_PORT", "metrics_port"
        ),
        description="Port for metrics, as of every service; `STRATA_METRICS_PORT` sets it, too."
        " `strata up` takes 7690, or the next free port, for the metrics of all services.",
    )
    http_origins: tuple[str, ...] = Field(
        default=(),
        description="JSON: web origins whose pages may call the HTTP port (CORS), such as"
        ' ["https://app.example"]; ["*"] for all.',
    )
    console: bool = Field(
        default=True,
        description="Serve the web console at /console of the HTTP port; off for an API alone.",
    )
    http_public_url: str = Field(
        default="",
        description="URL under which clients reach the HTTP port, such as https://strata.example,"
        " for the cards of agents; by default the URL of the request, which is wrong behind a "
        "proxy that ends TLS.",
    )
    tls_certificate_file: Path | None = Field(
        default=None,
        description="PEM file of the certificate and its chain: clients must speak TLS. It is read"
        " again when it changes.",
    )
    tls_key_file: Path | None = Field(
        default=None, description="PEM file of the certificate's private key."
    )
    tls_client_ca_file: Path | None = Field(
        default=None,
        description="PEM file of certificate authorities: only clients with a certificate of one of"
        " them are accepted (mTLS).",
    )
    internal_listen: str = Field(
        default="",
        description="Second address to listen on, host:port or unix:/path, without TLS: for the"
        " other services, on a network that clients cannot reach. Unset means none.",
    )
    limits: EdgeLimits = Field(default_factory=EdgeLimits, description="Server limits.")
    token_private_key: str = Field(
        default="", repr=False, description="PEM private key that signs the internal tokens."
    )
    token_private_key_file: Path | None = Field(
        default=None, description="File to read the private key from instead."
    )
    key_pepper: str = Field(
        default="",
        repr=False,
        description="Secret for the hashes of API keys; changing it invalidates all keys.",
    )
    key_pepper_file: Path | None = Field(
        default=None, description="File to read the pepper from instead."
    )
    key_cache_s: float = Field(
        default=5.0,
        ge=0,
        description="Maximum seconds that a revoked key still works on a replica.",
    )
    calls_per_second: float = Field(
        default=200.0,
        ge=0,
        description="Maximum number of calls per key, second and replica; 0: no limit.",
    )
    call_burst: int = Field(
        default=400, gt=0, description="Maximum number of calls of one key at once."
    )
    open_runs_per_project: int = Field(
        default=500, gt=0, description="Maximum number of queued and active runs per project."
    )
    delayed_runs_per_project: int = Field(
        default=500,
        gt=0,
        description="Maximum number of runs per project with a start_time in the future; they do "
        "not count as open until then.",
    )
    runs_at_once: int = Field(
        default=1000,
        gt=0,
        description="Maximum number of concurrent runs of one replica and partition, at most "
        "three quarters of them of one project; further runs are queued.",
    )
    memory_runs_at_once: int = Field(
        default=8,
        ge=0,
        description="Maximum number of concurrent runs of memory agents (sleeptime) of one "
        "replica and partition, in addition to runs_at_once and only while that has "
        "a free slot; with 0 they wait.",
    )
    memory_runs_at_once_per_project: int = Field(
        default=2,
        gt=0,
        description=(
            "Maximum number of concurrent runs of memory agents per project in one replica."
        ),
    )
    memory_tokens_per_hour: int = Field(
        default=0,
        ge=0,
        description="Maximum number of tokens per hour for the memory agents of all projects of "
        "a partition together; 0 for no limit. Beyond it, runs of memory agents "
        "wait; an active run is finished, and counted at its end.",
    )
    memory_tokens_per_hour_per_project: int = Field(
        default=0,
        ge=0,
        description=(
            "Maximum number of tokens per hour for the memory agents of one project; 0 for no "
            "limit."
        ),
    )
    ingested_files_per_agent: int = Field(
        default=50,
        ge=0,
        le=1000,
        description="Maximum number of files of attached folders to read into the memory of one "
        "agent that has a memory agent, each into a separate block; 0 turns the "
        "ingestion of documents off.",
    )
    run_timeout_s: float = Field(
        default=840.0,
        gt=0,
        description="Longest run from its first dispatch; less than stream_timeout_s.",
    )
    only_replica: bool = Field(
        default=False,
        description="No other gateway runs: runs of a dead one are taken over at start, at once.",
    )
    chain_limit: int = Field(
        default=8,
        gt=0,
        description="Maximum number of runs in a chain that agents start from one message by "
        "sending messages to each other.",
    )
    advertised_host: str = Field(
        default="",
        description="Host name or IP address at which the other gateways reach this one, at the"
        " same port. With it, followers of its runs get tokens through any gateway; without it,"
        " only stored events. In a cluster: the address of the pod.",
    )
    run_events_days: float = Field(
        default=90.0,
        ge=0,
        description="Days to keep the events of a finished run, and decided requests for approval;"
        " 0 for no limit. A project that keeps its messages for a shorter time keeps these only as"
        " long. The run itself, its end and its tokens stay; its stream and its explanation are"
        " deleted.",
    )
    model_prices: dict[str, ModelPrice] = Field(
        default_factory=dict,
        description="JSON: prices per million tokens by model handle, all in one currency,"
        ' such as {"openai/gpt-4.1": {"input": 2, "cached_input": 0.5, "output": 8}};'
        " also cache_write. `strata runs explain` and `strata runs steps` show the cost of a run;"
        " for a model without a price they show only tokens.",
    )
    schedules_per_project: int = Field(
        default=100,
        gt=0,
        description="Maximum number of schedules per project, including finished ones.",
    )
    schedule_min_interval_s: float = Field(
        default=60.0, ge=60, description="Minimum seconds between two runs of a schedule."
    )
    schedule_history_days: float = Field(
        default=30.0, gt=0, description="Days to keep the past ticks of a schedule."
    )
    webhooks_per_project: int = Field(
        default=100,
        gt=0,
        description="Maximum number of webhooks per project; webhooks of single runs that are "
        "delivered do not count.",
    )
    webhook_backlog_per_project: int = Field(
        default=10_000,
        gt=0,
        description="Maximum number of pending deliveries per project; beyond, the oldest ones "
        "fail (state FAILED, with that reason). Checked every half minute.",
    )
    webhook_history_days: float = Field(
        default=30.0,
        gt=0,
        description="Days to keep finished deliveries, and webhooks of single runs.",
    )
    webhook_timeout_s: float = Field(
        default=15.0, gt=0, le=60, description="Maximum seconds for the response of a receiver."
    )
    webhook_ports: tuple[int, ...] = Field(
        default=(80, 443), description="Allowed ports of receivers of webhooks."
    )
    webhook_private_networks: tuple[str, ...] = Field(
        default=(),
        description="JSON: private networks that receivers of webhooks may be in, such as"
        ' ["10.1.0.0/16"]; metadata services of clouds are never reached.',
    )
    worker_pool_size: int = Field(default=3, gt=0, description="Connections of the worker role.")
    project_partitions: tuple[str, ...] = Field(
        default=(DEFAULT_PARTITION,),
        min_length=1,
        description="JSON: the partitions for new projects, such as"
        ' ["default", "p1"]; each is placed on the one with the fewest projects, unless its request'
        " names one. A partition that is left out keeps its projects.",
    )

    @field_validator("webhook_private_networks")
    @classmethod
    def _check_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        read_networks(networks)
        return networks

    @model_validator(mode="after")
    def _has_databases_of_projects(self) -> Self:
        if set(self.project_partitions) - set(self.partitions):
            raise ValueError("project_partitions must be keys of partition_database_urls")
        return self

    @property
    def advertised_address(self) -> str:
        """Address at which other gateways reach this one; empty for none.

        With TLS that is the second address, because the certificate is not for a single replica.
        """
        host = self.advertised_host
        port = str(self.port) if self.tls is None else self.internal_listen.rpartition(":")[2]
        if not host or not is_whole_number(port) or not int(port):
            return ""
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.tls_certificate_file is None) != (self.tls_key_file is None):
            raise ValueError("set tls_certificate_file and tls_key_file, or neither of them")
        if self.tls_client_ca_file is not None and self.tls_certificate_file is None:
            raise ValueError("tls_client_ca_file needs tls_certificate_file and tls_key_file")
        return self

    @property
    def tls(self) -> ServerTls | None:
        """TLS files of the server; None for no TLS."""
        if self.tls_certificate_file is None or self.tls_key_file is None:
            return None
        return ServerTls(self.tls_certificate_file, self.tls_key_file, self.tls_client_ca_file)

    @property
    def internal_address(self) -> str:
        """See `ServiceSettings.internal_address`."""
        return self.internal_listen

    def private_key(self) -> str:
        """Returns the PEM text to sign internal tokens with.

        Raises:
            ValueError: Neither the key nor a readable file with it is configured.
        """
        return _secret(self.token_private_key, self.token_private_key_file, "token_private_key")

    def pepper(self) -> str:
        """Returns the pepper of the API keys.

        Raises:
            ValueError: Neither the pepper nor a readable file with it is configured.
        """
        return _secret(self.key_pepper, self.key_pepper_file, "key_pepper")

    def public_keys(self) -> str:
        """Returns the public keys for verifying internal tokens; by default its own."""
        if self.token_public_keys or self.token_public_keys_file is not None:
            return super().public_keys()
        return public_key_of(self.private_key())


def _secret(value: str, file: Path | None, name: str) -> str:
    if value:
        return value
    if file is None:
        raise ValueError(f"set STRATA_GATEWAY_{name.upper()} or STRATA_GATEWAY_{name.upper()}_FILE")
    return file.read_text(encoding="ascii").strip()
