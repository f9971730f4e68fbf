"""``strata migrate``: schemas in a PostgreSQL of one's own, up to date or a step back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy.engine import make_url

from strata.cli.compose.services import SERVICES
from strata.cli.failures import UsageError
from strata.shared.migrate import RolePasswords, ServiceMigrations

NOTHING = "nothing"
"""How a schema without tables is written."""


@dataclass(frozen=True, slots=True)
class Migrated:
    """What was done for one service."""

    service: str
    before: str
    after: str


async def migrate_all(
    admin_url: str, database_urls: Mapping[str, tuple[str, str]], *, check_only: bool
) -> list[Migrated]:
    """Migrates, or only checks, the schema of every service.

    Args:
        admin_url: A superuser, or a role that may make roles, schemas and extensions.
        database_urls: Service and worker URL by service, whose passwords the roles get; a
            service without them keeps the roles that are there.
        check_only: Change nothing; fail if something is behind.

    Raises:
        FailedPreconditionError: A schema is ahead of this release, or behind with ``check_only``.
        UnavailableError: The database cannot be reached.
    """
    done = []
    for spec in SERVICES:
        before = await spec.migrations.version(admin_url) or NOTHING
        if check_only:
            await spec.migrations.check(admin_url)
        else:
            passwords = _passwords(database_urls.get(spec.name, ("", "")))
            await spec.migrations.upgrade(admin_url, passwords)
        done.append(Migrated(spec.name, before, spec.migrations.head))
    return done


async def take_back(admin_url: str, service: str, revision: str | None) -> Migrated:
    """Takes the newest migrations of one service back.

    Args:
        admin_url: As for `migrate_all`.
        service: Its name.
        revision: The one to go back to; None for a schema without tables.

    Raises:
        UsageError: There is no such service or revision.
        FailedPreconditionError: The schema is behind that revision, or ahead of this release.
        UnavailableError: The database cannot be reached.
    """
    migrations = migrations_of(service)
    if revision is not None and revision not in migrations.revisions:
        known = ", ".join(migrations.revisions)
        raise UsageError(
            f"{service} has no revision {revision!r}. It has {known}; {NOTHING!r} takes all back."
        )
    before = await migrations.version(admin_url) or NOTHING
    await migrations.downgrade(admin_url, revision)
    return Migrated(service, before, revision or NOTHING)


def migrations_of(service: str) -> ServiceMigrations:
    """Returns the migrations of a service.

    Raises:
        UsageError: There is no such service.
    """
    for spec in SERVICES:
        if spec.name == service:
            return spec.migrations
    known = ", ".join(spec.name for spec in SERVICES)
    raise UsageError(f"There is no service {service!r}. Choose one of {known}.")


def run_take_back(admin_url: str, service: str, revision: str) -> Migrated:
    """Runs `take_back`; the revision is as typed, `NOTHING` for none."""
    return asyncio.run(take_back(admin_url, service, None if revision == NOTHING else revision))


def _passwords(urls: tuple[str, str]) -> RolePasswords | None:
    service, worker = (make_url(url).password if url else None for url in urls)
    if service is None or worker is None:
        return None
    return RolePasswords(service=str(service), worker=str(worker))


def urls_of_services() -> dict[str, tuple[str, str]]:
    """Returns the database URLs that the services are configured with, by service."""
    urls = {}
    for spec in SERVICES:
        settings = spec.settings()
        urls[spec.name] = (settings.database_url, settings.worker_database_url)
    return urls


def run_migrate(admin_url: str, *, check_only: bool) -> list[Migrated]:
    """Runs `migrate_all` with the services' own settings."""
    return asyncio.run(migrate_all(admin_url, urls_of_services(), check_only=check_only))
