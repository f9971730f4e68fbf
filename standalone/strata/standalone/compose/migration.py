"""Migrates schemas in a separate process, which ends when they are migrated.

SQLAlchemy and Alembic take 30 MB of memory, and no service needs them.

    python -m strata.standalone.compose.migration

reads a `_Request` from its standard input, and writes the error to its standard output if there is
one; both are JSON.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel

import strata
from strata.protocol.errors import ERRORS, InternalError, Reason, StrataError
from strata.shared.logs import LogFormat, LogLevel, configure_logging
from strata.shared.migrate import RolePasswords
from strata.standalone.compose.services import SERVICES
from strata.standalone.settings import environment_of_server


class _Request(BaseModel):
    """What is to be migrated, and how that is logged.

    Attributes:
        admin_url: See `ServiceMigrations.upgrade`.
        passwords: The passwords of the roles by service; other services are not migrated.
        log_level: Lowest level that is logged.
        log_format: Form of the logs.
    """

    admin_url: str
    passwords: dict[str, RolePasswords]
    log_level: LogLevel
    log_format: LogFormat


class _Failure(BaseModel):
    """A `StrataError`."""

    status: str
    reason: Reason
    message: str
    metadata: dict[str, str]


async def migrate(
    admin_url: str,
    passwords: Mapping[str, RolePasswords],
    log_level: LogLevel,
    log_format: LogFormat,
) -> None:
    """Upgrades schemas in a child process, which is killed if the caller is cancelled.

    Each migration is one transaction, so the next start continues after the last complete one.

    Args:
        admin_url: See `ServiceMigrations.upgrade`.
        passwords: The passwords of the roles by service, for the services to migrate.
        log_level: Lowest level that is logged.
        log_format: Form of the logs.

    Raises:
        FailedPreconditionError: See `ServiceMigrations.upgrade`.
        UnavailableError: See there.
        InternalError: The process ended without a result; it has written why to standard error.
    """
    request = _Request(
        admin_url=admin_url, passwords=dict(passwords), log_level=log_level, log_format=log_format
    )
    roots = os.pathsep.join(str(Path(part).parent) for part in strata.__path__)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**environment_of_server(), "PYTHONPATH": roots},
        # Ctrl-C in the terminal reaches this process only, which ends the other.
        start_new_session=True,
    )
    try:
        output, _ = await process.communicate(request.model_dump_json().encode())
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    if output:
        raise _error(_Failure.model_validate_json(output))
    if process.returncode:
        raise InternalError(f"the migration of the database ended with code {process.returncode}")


def _error(failure: _Failure) -> StrataError:
    kind = next(kind for kind in ERRORS if kind.status == failure.status)
    return kind(failure.message, reason=failure.reason, metadata=failure.metadata)


async def _upgrade(request: _Request) -> None:
    for spec in SERVICES:
        if spec.name in request.passwords:
            await spec.migrations.upgrade(request.admin_url, request.passwords[spec.name])


def _main() -> None:
    request = _Request.model_validate_json(sys.stdin.buffer.read())
    configure_logging(request.log_level, request.log_format, stream=sys.stderr)
    try:
        asyncio.run(_upgrade(request))
    except StrataError as error:
        failure = _Failure(
            status=error.status,
            reason=error.reason,
            message=error.message,
            metadata=dict(error.metadata),
        )
        sys.stdout.write(failure.model_dump_json())


if __name__ == "__main__":
    _main()
