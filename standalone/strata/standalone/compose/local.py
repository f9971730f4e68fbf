"""`strata up`: engines, schemas, chat model and services on one machine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strata.agent_loop.settings import AgentLoopSettings
from strata.client.target import API_KEY_FILE, ORGANIZATION_KEY_FILE
from strata.gateway.auth.bootstrap import (
    ensure_local_project,
    ensure_organization_key,
    is_other_pepper,
)
from strata.gateway.auth.domain import Hasher
from strata.gateway.settings import DEFAULT_HTTP_PORT, DEFAULT_METRICS_PORT, GatewaySettings
from strata.shared.auth import generate_key_pair, public_key_of
from strata.shared.logs import LogFormat, LogLevel
from strata.shared.secrets import generate_master_key, read_master_keys
from strata.shared.tracing.settings import TraceSettings
from strata.standalone.chat_model.progress import Progress, ignore
from strata.standalone.chat_model.settings import LocalDemoSettings
from strata.standalone.compose.model import ChatModelSettings, prepare_model
from strata.standalone.compose.services import ALL_SERVICES
from strata.standalone.compose.storage import Storage, open_storage
from strata.standalone.data_folder import DataFolder
from strata.standalone.files import (
    REPLACED_AT_START,
    damaged_secret,
    read_secret,
    write_atomically,
)
from strata.standalone.ports import PortClaims

HOST = "127.0.0.1"
# For the person at the terminal.
DEFAULT_LOG_LEVEL: LogLevel = "WARNING"
DEFAULT_LOG_FORMAT: LogFormat = "console"
PEPPER_FILE = "key-pepper"
"""Name of the secret with which API keys are hashed."""
# A server that listens on one of these is reached at 127.0.0.1.
_REACHED_ON_LOOPBACK = (HOST, "localhost", "0.0.0.0", "::", "[::]")  # noqa: S104 - compared only
# Each connection is a process of PostgreSQL's; more of them serve two cores no faster.
_POOL_SIZE = 4


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """How a local Strata is started.

    Attributes:
        port: Preferred port of the gateway; another one is taken if it is in use.
        host: Address that the gateway listens on.
        split: One process per service instead of one for all.
        log_level: Lowest level that is logged.
        log_format: Form of the logs.
        report: Called with the progress of the demo model, possibly from a thread.
    """

    port: int
    host: str = HOST
    split: bool = False
    log_level: LogLevel = DEFAULT_LOG_LEVEL
    log_format: LogFormat = DEFAULT_LOG_FORMAT
    report: Callable[[Progress], None] = field(default=ignore)


@dataclass(frozen=True, slots=True)
class Local:
    """The parts of a local Strata below its services.

    Attributes:
        folder: The open data folder.
        storage: The running engines.
        model: The chosen chat model.
        gateway: Settings of the gateway, complete.
        private_key: Signs the internal tokens.
        worker_key: Signs the tokens of core memory's worker, for archival.
        model_master_keys: Encrypt the stored keys of model providers; one per line, the newest
            first.
        tool_master_keys: Encrypt the stored secrets of tools, in the same form.
        ports: The ports of its servers.
    """

    folder: DataFolder
    storage: Storage
    model: ChatModelSettings
    gateway: GatewaySettings
    private_key: str = field(repr=False)
    worker_key: str = field(repr=False)
    model_master_keys: str = field(repr=False)
    tool_master_keys: str = field(repr=False)
    ports: PortClaims = field(default_factory=PortClaims, repr=False)

    @property
    def address(self) -> str:
        """Where processes of this machine reach the gateway, without TLS."""
        return self.gateway.internal_address or f"{HOST}:{self.gateway.port}"

    @property
    def http_url(self) -> str:
        """Base URL of the gateway's HTTP port."""
        scheme = "http" if self.gateway.tls is None else "https"
        host = self.gateway.host.strip("[]")
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.gateway.http_port}"

    @property
    def metrics_port(self) -> int:
        """Port of the metrics: of all services in one process, else of the gateway."""
        assert self.gateway.metrics_port is not None
        return self.gateway.metrics_port

    @property
    def metrics_host(self) -> str:
        """Address of the metrics ports."""
        return self.gateway.metrics_host

    @property
    def packages_path(self) -> Path:
        """Folder of the packages of tools. Tool execution fills it, the tool runner reads it."""
        return self.folder.path / "packages"

    @property
    def public_key(self) -> str:
        """Verifies the internal tokens."""
        return public_key_of(self.private_key)

    def service_values(self, service: str) -> dict[str, Any]:
        """Returns the settings of a service that are not read from the environment."""
        values: dict[str, Any] = {
            "host": HOST,
            "token_public_keys": self.public_key,
            "log_format": self.gateway.log_format,
            "log_level": self.gateway.log_level,
            "drain_s": 0.0,
            "grace_s": 10.0,
        }
        database = self.storage.databases.get(service)
        if database is not None:
            values["database_url"] = database.service_url
            values["worker_database_url"] = database.worker_url
            values["pool_size"] = _POOL_SIZE
        if service == "gateway":
            values["token_private_key"] = self.private_key
            values["key_pepper"] = self.gateway.pepper()
            values["master_keys"] = [key.get_secret_value() for key in self.gateway.master_keys]
        if service == "core_memory":
            values["worker_token_key"] = self.worker_key
        if service == "archival":
            values["file_worker_public_keys"] = public_key_of(self.worker_key)
        if service in {"recall", "archival"}:
            values["qdrant_url"] = self.storage.vectors.url
            values["qdrant_api_key"] = self.storage.vectors.api_key
        if service in {"tool_execution", "tool_runner"}:
            values["packages_path"] = self.packages_path
        if service == "tool_execution":
            values["master_keys"] = tuple(self.tool_master_keys.split())
            # The person who starts Strata here may start programs on this machine anyway.
            values["mcp_local"] = True
            values["mcp_stdio_homes"] = self.folder.path / "mcp"
        if service == "agent_loop":
            values["master_keys"] = tuple(self.model_master_keys.split())
            values["prompts_path"] = AgentLoopSettings().prompts_path or self.folder.prompts
            if self.model.endpoints:
                values["model_endpoints"] = self.model.endpoints
            if self.model.default_model:
                values["default_model"] = self.model.default_model
        return values

    @property
    def processes(self) -> dict[str, int]:
        """The pids of our children by name."""
        pids = dict(self.storage.processes)
        if self.model.process is not None:
            pids["local-demo"] = self.model.process
        return pids


async def open_local(folder: DataFolder, options: LocalOptions, stack: AsyncExitStack) -> Local:
    """Starts everything except the services, and ensures that there is a project with a key.

    Args:
        folder: An open data folder.
        options: How to start.
        stack: Stops what was started.

    Raises:
        WrongSettingError: The environment holds a setting of a service that it cannot have.
        FailedPreconditionError: A file of the TLS settings cannot be used, or a secret of the
            folder is damaged.
    """
    _check_settings()
    private_key = _signing_key(folder, "token-signing-key")
    worker_key = _signing_key(folder, "core-memory-worker-key")
    model_master_keys, tool_master_keys = _master_keys(folder)
    model = await prepare_model(AgentLoopSettings(), LocalDemoSettings(), stack, options.report)
    storage = await open_storage(
        folder,
        stack,
        in_process=not options.split,
        log_level=options.log_level,
        log_format=options.log_format,
    )
    database = storage.databases["gateway"]
    ports = stack.enter_context(PortClaims())
    port = ports.pick(options.port)
    http_port = _port(GatewaySettings().http_port, DEFAULT_HTTP_PORT, options, ports)
    metrics_port = _port(GatewaySettings().metrics_port, DEFAULT_METRICS_PORT, options, ports)
    gateway = GatewaySettings(
        host=options.host,
        port=port,
        http_port=http_port,
        metrics_port=metrics_port,
        metrics_host=GatewaySettings().metrics_host or HOST,
        internal_listen=_internal_address(options.host, ports),
        database_url=database.service_url,
        worker_database_url=database.worker_url,
        token_private_key=private_key,
        key_pepper=folder.secret(PEPPER_FILE, check=Hasher),
        master_keys=tuple(_master_key(folder, "gateway-master-key").split()),
        # The lock of the data folder excludes a second gateway.
        only_replica=True,
        pool_size=_POOL_SIZE,
        log_format=options.log_format,
        log_level=options.log_level,
        drain_s=0.0,
        grace_s=10.0,
    )
    await _ensure_keys(folder, gateway)
    local = Local(
        folder,
        storage,
        model,
        gateway,
        private_key,
        worker_key,
        model_master_keys,
        tool_master_keys,
        ports,
    )
    # The tool runner may start before tool execution.
    local.packages_path.mkdir(mode=0o755, exist_ok=True)
    return local


def _check_settings() -> None:
    """Validates all settings before anything starts: fetching a model may take minutes."""
    TraceSettings()
    for spec in ALL_SERVICES:
        spec.settings()
    tls = GatewaySettings().tls
    if tls is not None:
        tls.credentials()


def _master_keys(folder: DataFolder) -> tuple[str, str]:
    """Returns the master keys of the agent loop, and the master keys of tool_execution.

    Folders of earlier releases have one key for both. It remains the second key of tool_execution,
    so that secrets of tools that were sealed with it can still be opened.
    """
    may_be_of_both = (folder.secrets / "master-key").exists()
    of_models = _master_key(folder, "master-key")
    return of_models, _master_key(folder, "tool-master-key", of_models if may_be_of_both else "")


def _signing_key(folder: DataFolder, name: str) -> str:
    # Tokens are valid for minutes and made anew after a start.
    return folder.secret(
        name, lambda: generate_key_pair()[0], public_key_of, remedy=REPLACED_AT_START
    )


def _master_key(folder: DataFolder, name: str, earlier: str = "") -> str:
    """Returns master keys, one per line: a new one, and then the earlier one if there is one."""
    return folder.secret(
        name,
        lambda: "\n".join(filter(None, (generate_master_key(), earlier))),
        lambda text: read_master_keys(text.split()),
    )


async def _ensure_keys(folder: DataFolder, gateway: GatewaySettings) -> None:
    """Creates the organization key of the folder, and the project and API key for commands.

    Raises:
        FailedPreconditionError: The pepper is not that of the existing keys.
    """
    names = (ORGANIZATION_KEY_FILE, API_KEY_FILE)
    known_keys = [key for name in names if (key := _kept_key(folder, name)[1]) is not None]
    if await is_other_pepper(gateway, known_keys):
        raise damaged_secret(
            folder.secrets / PEPPER_FILE,
            "the API keys were made with another one",
            "Restore this file from a copy of the data folder. Without a copy, delete"
            f" {' and '.join(names)} beside it and start Strata again: it then makes new ones, and"
            " no other API key that exists works any more.",
        )
    path, stored_key = _kept_key(folder, ORGANIZATION_KEY_FILE)
    organization = await ensure_organization_key(gateway, known_key=stored_key)
    if organization.created:
        write_atomically(path, organization.secret)
    path, stored_key = _kept_key(folder, API_KEY_FILE)
    project = await ensure_local_project(gateway, organization.secret, known_key=stored_key)
    if project.created:
        write_atomically(path, project.secret)


def _kept_key(folder: DataFolder, name: str) -> tuple[Path, str | None]:
    path = folder.secrets / name
    return path, read_secret(path) if path.exists() else None


def _port(configured: int | None, usual: int, options: LocalOptions, ports: PortClaims) -> int:
    """Returns the port of the settings, which must then be free; else the usual or the next one."""
    if configured is None and options.port:
        return ports.next_free(usual)
    # Chosen here, because it is announced and stays the same when the gateway is restarted.
    if not configured:
        return ports.pick()
    ports.claim(configured)
    return configured


def _internal_address(host: str, ports: PortClaims) -> str:
    """Returns a second, local address if the first one uses TLS or is not on loopback."""
    settings = GatewaySettings()
    reached = host in _REACHED_ON_LOOPBACK and settings.tls is None
    if settings.internal_listen or reached:
        return settings.internal_listen
    return f"{HOST}:{ports.pick()}"
