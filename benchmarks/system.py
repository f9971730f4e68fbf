"""Starts and stops `strata up` in a new data folder, with a model double."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from pathlib import Path

import grpc
import grpc.aio

from benchmarks.processes import Child, Usage, until_calm, usage
from strata.api.gateway.v1 import admin_service_pb2 as admin_pb
from strata.api.gateway.v1 import admin_service_pb2_grpc as admin_grpc
from strata.standalone.data_folder import DataFolder
from strata.standalone.ports import pick_port

_FIRST_ANSWER_S = 30.0


class System:
    """One running Strata.

    Attributes:
        folder: Its data folder.
        split: Whether each service has a process of its own.
        seconds_to_ready: From the start of the process to the first answered call.
    """

    def __init__(
        self,
        data: Path,
        model_url: str,
        *,
        split: bool,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = DataFolder(data)
        self.seconds_to_ready = 0.0
        self.split = split
        self._settings: Mapping[str, str] = {
            "STRATA_LOCAL_DEMO": "off",
            "OPENAI_BASE_URL": model_url,
            "OPENAI_API_KEY": "benchmark",
            **(settings or {}),
        }
        self._child: Child | None = None

    async def start(self) -> float:
        """Starts it; returns the seconds until the first call was answered."""
        port = pick_port()
        command = ["-m", "strata.cli.main", "up", "--data", str(self.folder.path)]
        command += ["--port", str(port), *(["--split"] if self.split else [])]
        log = self.folder.path.with_suffix(".log")
        self._child = Child(command, self._settings, log)
        await self._child.line("READY")
        async with self.channel() as channel:
            await admin_grpc.AdminServiceStub(channel).WhoAmI(
                admin_pb.WhoAmIRequest(),
                metadata=self.credentials(),
                timeout=_FIRST_ANSWER_S,
                wait_for_ready=True,
            )
        self.seconds_to_ready = time.perf_counter() - self._child.started
        return self.seconds_to_ready

    async def stop(self) -> float:
        """Stops it; returns the seconds it took."""
        assert self._child is not None
        child, self._child = self._child, None
        return await child.stop()

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped."""
        return self._child is not None

    def channel(self) -> grpc.aio.Channel:
        """Returns a channel to the gateway."""
        runtime = self.folder.running()
        assert runtime is not None, "strata is not running"
        return grpc.aio.insecure_channel(runtime.address)

    def credentials(self) -> tuple[tuple[str, str], ...]:
        """Returns the metadata of an authenticated call."""
        key = (self.folder.secrets / "api-key").read_text()
        return (("authorization", f"Bearer {key}"),)

    async def new_project(self, name: str) -> tuple[tuple[str, str], ...]:
        """Creates a project; returns the metadata of a call with one of its keys."""
        secret = (self.folder.secrets / "organization-key").read_text()
        metadata = (("authorization", f"Bearer {secret}"),)
        async with self.channel() as channel:
            admin = admin_grpc.AdminServiceStub(channel)
            created = await admin.CreateProject(
                admin_pb.CreateProjectRequest(request_id=uuid.uuid4().hex, name=name),
                metadata=metadata,
            )
            key = await admin.CreateApiKey(
                admin_pb.CreateApiKeyRequest(project_id=created.project.id, name=name),
                metadata=metadata,
            )
        return (("authorization", f"Bearer {key.secret}"),)

    async def until_calm(self, *, patience_s: int = 60) -> bool:
        """Waits until its work in the background has ended; returns whether it has.

        Args:
            patience_s: Seconds after which it returns in any case.
        """
        assert self._child is not None
        return await until_calm(self._child.pid, patience_s=patience_s)

    def usage(self) -> Usage:
        """Returns the memory and processor time of its processes."""
        assert self._child is not None
        return usage(self._child.pid)

    def database_url(self, database: str, user: str = "postgres", password: str = "") -> str:
        """Returns the URL of its PostgreSQL; by default for the superuser."""
        port = (self.folder.postgres / "port").read_text().strip()
        if not password:
            password = (self.folder.postgres / "superuser.password").read_text().strip()
        return f"postgresql://{user}:{password}@127.0.0.1:{port}/{database}"
