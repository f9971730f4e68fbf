"""Migrates schemas: the program that `migration` starts.

It reads a request from its standard input, and writes the error to its standard output if there is
one; both are JSON, described in `migration`. It loads what it needs before it reads.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Any

# Loads SQLAlchemy and Alembic.
import strata.shared.migrate.alembic_steps  # noqa: F401
from strata.protocol.errors import StrataError
from strata.shared.logs import configure_logging
from strata.shared.migrate import RolePasswords, ServiceMigrations


async def _upgrade(request: Mapping[str, Any]) -> None:
    for service in request["services"]:
        migrations = ServiceMigrations(
            service["service"],
            service["package"],
            service["schema"],
            frozenset(service["untenanted"]),
        )
        await migrations.upgrade(request["admin_url"], RolePasswords(**service["passwords"]))


def main() -> None:
    """Runs the program."""
    text = sys.stdin.buffer.read()
    if not text:
        return
    request = json.loads(text)
    configure_logging(request["log_level"], request["log_format"], stream=sys.stderr)
    try:
        asyncio.run(_upgrade(request))
    except StrataError as error:
        failure = {
            "status": error.status,
            "reason": error.reason,
            "message": error.message,
            "metadata": dict(error.metadata),
        }
        sys.stdout.write(json.dumps(failure))


if __name__ == "__main__":
    main()
