"""`strata up`: engines, schemas, chat model and rooms on one machine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from strata.agent_loop.settings import AgentLoopSettings
from strata.cli.compose.model import ChatModel, prepare_model
from strata.cli.compose.storage import Storage, open_storage
from strata.embedded.chat_model.progress import Progress, ignore
from strata.embedded.chat_model.settings import LocalDemoSettings
from strata.embedded.data_folder import DataFolder
from strata.embedded.files import write_atomically
from strata.embedded.ports import pick_port
from strata.gateway.bootstrap import ensure_local_project
from strata.gateway.settings import GatewaySettings
from strata.shared.auth import generate_key_pair, public_key_of
from strata.shared.secrets import generate_master_key

HOST = "127.0.0.1"
API_KEY = "api-key"
# Each connection is a process of PostgreSQL's; more of them serve two cores no faster.
_POOL_SIZE = 4


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """How a local Strata is started.

    Attributes:
        port: Preferred port of the gateway; another one is taken if it is in use.
        split: One process per room instead of one for all.
        report: Told how far the demo model is; may be called from a thread.
    """

    port: int
    split: bool = False
    report: Callable[[Progress], None] = field(default=ignore)


@dataclass(frozen=True, slots=True)
class Local:
    """What every shape of a local Strata stands on.

    Attributes:
        folder: The open data folder.
        storage: The running engines.
        model: The chosen chat model.
        gateway: Settings of the gateway, complete.
        private_key: Signs the internal tokens.
        worker_key: Signs those of core memory's worker, for archival.
        master_keys: Encrypt the model keys and the secrets of tools that are stored; one per
            line, the newest first.
    """

    folder: DataFolder
    storage: Storage
    model: ChatModel
    gateway: GatewaySettings
    private_key: str = field(repr=False)
    worker_key: str = field(repr=False)
    master_keys: str = field(repr=False)

    @property
    def public_key(self) -> str:
        """Verifies the internal tokens."""
        return public_key_of(self.private_key)

    def room_values(self, room: str) -> dict[str, Any]:
        """Returns the settings that a room gets from us; the rest it reads from outside."""
        values: dict[str, Any] = {
            "host": HOST,
            "token_public_keys": self.public_key,
            "log_format": "console",
            "log_level": "WARNING",
            "drain_s": 0.0,
            "grace_s": 10.0,
        }
        database = self.storage.databases[room]
        values["database_url"] = database.service_url
        values["worker_database_url"] = database.worker_url
        values["pool_size"] = _POOL_SIZE
        if room == "core_memory":
            values["worker_token_key"] = self.worker_key
        if room == "archival":
            values["token_public_keys"] = self.public_key + public_key_of(self.worker_key)
        if room in {"recall", "archival"}:
            values["qdrant_url"] = self.storage.vectors.url
            values["qdrant_api_key"] = self.storage.vectors.api_key
        if room in {"agent_loop", "tool_execution"}:
            values["master_keys"] = tuple(self.master_keys.split())
        if room == "tool_execution":
            values["packages_path"] = self.folder.path / "packages"
            # Whoever starts Strata on a machine of their own may start programs there anyway.
            values["mcp_local"] = True
        if room == "agent_loop":
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
    """Starts all but the rooms, and makes sure that there is a project with a key.

    Args:
        folder: An open data folder.
        options: How to start.
        stack: Stops what was started.
    """
    private_key = folder.secret("token-signing-key", lambda: generate_key_pair()[0])
    worker_key = folder.secret("core-memory-worker-key", lambda: generate_key_pair()[0])
    master_keys = folder.secret("master-key", generate_master_key)
    model = await prepare_model(AgentLoopSettings(), LocalDemoSettings(), stack, options.report)
    storage = await open_storage(folder, stack)
    database = storage.databases["gateway"]
    gateway = GatewaySettings(
        host=HOST,
        port=pick_port(options.port),
        database_url=database.service_url,
        worker_database_url=database.worker_url,
        token_private_key=private_key,
        key_pepper=folder.secret("key-pepper"),
        # Whoever has the data folder open is alone with it.
        only_replica=True,
        pool_size=_POOL_SIZE,
        log_format="console",
        log_level="WARNING",
        drain_s=0.0,
        grace_s=10.0,
    )
    kept = folder.secrets / API_KEY
    known = kept.read_text() if kept.exists() else None
    project = await ensure_local_project(gateway, known_key=known)
    if project.created_key:
        write_atomically(kept, project.api_key)
    return Local(folder, storage, model, gateway, private_key, worker_key, master_keys)
