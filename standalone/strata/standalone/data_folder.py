"""The data folder of a local Strata.

lock           held by the process that runs on this folder
runtime.json   address of that process, which holds this file locked, too; meaningless if it is not
postgres/      the database: see `EmbeddedPostgres`
vectors/       the vector engine: see `EmbeddedVectors`
packages/      packages of tools; rebuilt when missing
prompts/       system prompts <key>.txt that the user adds
secrets/       passwords and keys, one per file, 0600
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING

from strata.client.data_folder import DataFolderReader, Runtime
from strata.client.settings import DATA_FOLDER_OF_ROOT
from strata.protocol.errors import FailedPreconditionError, Reason
from strata.standalone.files import (
    REPLACED_AT_START,
    damaged_secret,
    inaccessible_secret,
    read_secret,
    write_atomically,
)
from strata.standalone.locks import FolderLock
from strata.standalone.postgres_binaries import unprivileged_identity
from strata.standalone.supervisor import Identity

if TYPE_CHECKING:
    from strata.shared.migrate import RolePasswords


METRICS_TARGETS = "metrics-targets.json"


class DataFolder(DataFolderReader):
    """One data folder, used by at most one running Strata.

    Args:
        path: The folder; by default `default_data_folder`. It is not touched before `open`.
    """

    def __init__(self, path: Path | None = None) -> None:
        super().__init__(path)
        self._lock = FolderLock(self.lock_file, f"the data folder {self.path}")
        self._published: IO[str] | None = None

    @property
    def postgres(self) -> Path:
        """The database's folder."""
        return self.path / "postgres"

    @property
    def prompts(self) -> Path:
        """The folder of system prompts."""
        return self.path / "prompts"

    @property
    def vectors(self) -> Path:
        """The vector engine's folder."""
        return self.path / "vectors"

    def open(self) -> None:
        """Creates the folder if necessary and locks it for this process.

        Raises:
            FailedPreconditionError: Another process uses it; the message names its pid and
                address. Or this process is root, and the database's user cannot enter the folder.
        """
        self.check_is_folder()
        identity = unprivileged_identity()
        # Other users can list nothing; the database's user can pass through to its subfolder.
        mode = 0o711 if identity.uid >= 0 else 0o700
        try:
            self.path.mkdir(mode=mode, parents=True, exist_ok=True)
            self.path.chmod(mode)
        except OSError as error:
            raise _unwritable(self.path, error) from error
        _check_passage(self.path, identity)
        self._lock.acquire("starting")
        self._withdraw()
        for folder in (self.postgres, self.vectors, self.secrets):
            try:
                folder.mkdir(mode=0o700, exist_ok=True)
            except OSError as error:
                self._lock.release()
                raise _unwritable(folder, error) from error

    def close(self) -> None:
        """Unlocks the folder."""
        self._withdraw()
        self._lock.release()

    def announce(self, address: str, processes: Mapping[str, int], *, http_url: str = "") -> None:
        """Publishes how other processes can reach this one. The folder must be open.

        Args:
            address: `host:port` of the gateway.
            processes: The pids of children by name.
            http_url: Base URL of the HTTP port of the gateway; empty for none.
        """
        self._withdraw()
        runtime = Runtime(os.getpid(), address, dict(processes), http_url)
        write_atomically(self.runtime_file, json.dumps(asdict(runtime), indent=1))
        self._published = self.runtime_file.open("r+")
        # Until it is locked, readers ignore it; they lock it for a moment themselves.
        fcntl.flock(self._published, fcntl.LOCK_EX)
        self._lock.annotate(address)

    @property
    def metrics_targets(self) -> Path:
        """File with the addresses of the metrics, in the form of `file_sd_configs` (Prometheus)."""
        return self.path / METRICS_TARGETS

    def announce_metrics(self, host: str, ports: Mapping[str, int]) -> None:
        """Writes `metrics_targets`. It is kept after the end, so that Prometheus reports it.

        Args:
            host: Address of the ports.
            ports: The port of each process by name.
        """
        host_in_address = f"[{host.strip('[]')}]" if ":" in host else host
        targets = [
            {"targets": [f"{host_in_address}:{port}"], "labels": {"process": name}}
            for name, port in sorted(ports.items())
        ]
        write_atomically(self.metrics_targets, json.dumps(targets, indent=1))

    def _withdraw(self) -> None:
        self.runtime_file.unlink(missing_ok=True)
        if self._published is not None:
            self._published.close()
            self._published = None

    def secret(
        self,
        name: str,
        make: Callable[[], str] | None = None,
        check: Callable[[str], object] | None = None,
        *,
        remedy: str = "",
    ) -> str:
        """Returns a secret of this folder, created at the first call. The folder must be open.

        Args:
            name: Its file name.
            make: Creates it; by default 32 random bytes as text.
            check: Raises `ValueError` for a text that is not such a secret.
            remedy: What a person can do if the file is damaged; see `damaged_secret`.

        Raises:
            FailedPreconditionError: The file is empty, damaged or cannot be read. It is not
                replaced, because what is stored may depend on it.
        """
        path = self.secrets / name
        try:
            if not path.exists():
                write_atomically(path, make() if make is not None else secrets.token_urlsafe(32))
        except OSError as error:
            raise inaccessible_secret(path, error) from error
        secret = read_secret(path)
        if secret is None:
            raise damaged_secret(path, "it is empty or not text", remedy)
        if check is not None:
            try:
                check(secret)
            except ValueError as error:
                raise damaged_secret(path, str(error), remedy) from error
        return secret

    def role_passwords(self, service: str) -> RolePasswords:
        """Returns the passwords of a service's database roles. The folder must be open."""
        # Imported here: the CLI opens folders too, and must not load the driver of the database.
        from strata.shared.migrate import RolePasswords, check_password  # noqa: PLC0415

        passwords = (
            self.secret(path.name, check=check_password, remedy=REPLACED_AT_START)
            for path in self.role_password_files(service)
        )
        return RolePasswords(*passwords)

    def role_password_files(self, service: str) -> tuple[Path, Path]:
        """Returns the files of `role_passwords`: of the service's role and of its worker's."""
        return self.secrets / f"postgres-{service}", self.secrets / f"postgres-{service}-worker"


def _unwritable(folder: Path, error: OSError) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"the folder {folder} cannot be created or written: {error.strerror}",
        reason=Reason.IN_USE,
        metadata={"folder": str(folder)},
    )


def _check_passage(path: Path, identity: Identity) -> None:
    if identity.uid < 0:
        return
    for folder in (*reversed(path.parents), path):
        state = folder.stat()
        if state.st_uid == identity.uid:
            open_to = state.st_mode & 0o100
        elif state.st_gid == identity.gid:
            open_to = state.st_mode & 0o010
        else:
            open_to = state.st_mode & 0o001
        if not open_to:
            raise FailedPreconditionError(
                f"PostgreSQL does not run as root, and user id {identity.uid}, which it runs as "
                f"instead, cannot pass through {folder}. Choose a data folder elsewhere, such "
                f"as {DATA_FOLDER_OF_ROOT}, or start Strata as the owner of {folder}.",
                reason=Reason.IN_USE,
                metadata={"folder": str(folder)},
            )
