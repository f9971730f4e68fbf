"""Migrates schemas in a separate process, which ends when they are migrated.

SQLAlchemy and Alembic take 30 MB of memory, and no service needs them.

The request to the process has the members ``admin_url``, ``log_level``, ``log_format`` and
``services``: the fields of `ServiceMigrations`, with the fields of `RolePasswords` as
``passwords``. A `StrataError` comes back with the members ``status``, ``reason``, ``message`` and
``metadata``.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

import strata
from strata.protocol.errors import ERRORS, InternalError, Reason, StrataError
from strata.shared.logs import LogFormat, LogLevel
from strata.shared.migrate import RolePasswords, ServiceMigrations
from strata.standalone.settings import environment_of_server
from strata.standalone.supervisor import wait_exit

_PROGRAM = "strata.standalone.compose.migration_process"


class MigrationProcess:
    """A process that migrates schemas once. Create it with `migration_process`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    async def upgrade(
        self,
        admin_url: str,
        services: Sequence[tuple[ServiceMigrations, RolePasswords]],
        log_level: LogLevel,
        log_format: LogFormat,
    ) -> None:
        """Upgrades schemas. Each migration is one transaction: nothing is left half done.

        Args:
            admin_url: See `ServiceMigrations.upgrade`.
            services: The services, in this order.
            log_level: Lowest level that is logged.
            log_format: Form of the logs.

        Raises:
            FailedPreconditionError: See `ServiceMigrations.upgrade`.
            UnavailableError: See there.
            InternalError: The process ended without a result; it has written why to standard error.
        """
        request = {
            "admin_url": admin_url,
            "log_level": log_level,
            "log_format": log_format,
            "services": [
                {
                    "service": migrations.service,
                    "package": migrations.package,
                    "schema": migrations.schema,
                    "untenanted": sorted(migrations.untenanted),
                    "passwords": asdict(passwords),
                }
                for migrations, passwords in services
            ],
        }
        text = json.dumps(request).encode()
        communication = asyncio.ensure_future(asyncio.to_thread(self._process.communicate, text))
        try:
            output, _ = await asyncio.shield(communication)
        except asyncio.CancelledError:
            self._process.kill()
            await communication
            raise
        if output:
            raise _error(output)
        if self._process.returncode:
            code = self._process.returncode
            raise InternalError(f"the migration of the database ended with code {code}")


@asynccontextmanager
async def migration_process() -> AsyncIterator[MigrationProcess]:
    """Starts a process that migrates, and kills it at the end of the block.

    It takes a second to load, so it is started before it is needed.
    """
    process = _start()
    try:
        yield MigrationProcess(process)
    finally:
        process.kill()
        await wait_exit(process)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _start() -> subprocess.Popen[bytes]:
    roots = os.pathsep.join(str(Path(part).parent) for part in strata.__path__)
    return subprocess.Popen(  # noqa: S603 - a program of ours
        [sys.executable, "-m", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**environment_of_server(), "PYTHONPATH": roots},
        # Ctrl-C in the terminal reaches this process only, which ends the other.
        start_new_session=True,
    )


def _error(output: bytes) -> StrataError:
    failure = json.loads(output)
    kind = next(kind for kind in ERRORS if kind.status == failure["status"])
    return kind(failure["message"], reason=Reason(failure["reason"]), metadata=failure["metadata"])
