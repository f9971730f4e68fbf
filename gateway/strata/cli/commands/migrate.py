"""``strata migrate``: brings the schemas of all rooms up to date in a PostgreSQL of one's own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy.engine import make_url

from strata.cli.compose.rooms import ROOMS
from strata.shared.migrate import RolePasswords


@dataclass(frozen=True, slots=True)
class Migrated:
    """What was done for one room."""

    room: str
    before: str
    after: str


async def migrate_all(
    admin_url: str, database_urls: Mapping[str, tuple[str, str]], *, check_only: bool
) -> list[Migrated]:
    """Migrates, or only checks, the schema of every room.

    Args:
        admin_url: A superuser, or a role that may make roles, schemas and extensions.
        database_urls: Service and worker URL by room, whose passwords the roles get; a
            room without them keeps the roles that are there.
        check_only: Change nothing; fail if something is behind.

    Raises:
        FailedPreconditionError: A schema is ahead of this release, or behind with ``check_only``.
        UnavailableError: The database cannot be reached.
    """
    done = []
    for spec in ROOMS:
        before = await spec.migrations.version(admin_url) or "nothing"
        if check_only:
            await spec.migrations.check(admin_url)
        else:
            passwords = _passwords(database_urls.get(spec.name, ("", "")))
            await spec.migrations.upgrade(admin_url, passwords)
        done.append(Migrated(spec.name, before, spec.migrations.head))
    return done


def _passwords(urls: tuple[str, str]) -> RolePasswords | None:
    service, worker = (make_url(url).password if url else None for url in urls)
    if service is None or worker is None:
        return None
    return RolePasswords(service=str(service), worker=str(worker))


def urls_of_rooms() -> dict[str, tuple[str, str]]:
    """Returns the database URLs that the rooms are configured with, by room."""
    urls = {}
    for spec in ROOMS:
        settings = spec.settings()
        urls[spec.name] = (settings.database_url, settings.worker_database_url)
    return urls


def run_migrate(admin_url: str, *, check_only: bool) -> list[Migrated]:
    """Runs `migrate_all` with the rooms' own settings."""
    return asyncio.run(migrate_all(admin_url, urls_of_rooms(), check_only=check_only))
