"""``strata migrate``: upgrades or downgrades the schemas in a PostgreSQL of your own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from strata.cli.failures import UsageError
from strata.shared.migrate import RolePasswords, ServiceMigrations
from strata.shared.partitions import DEFAULT_PARTITION
from strata.standalone.compose.services import SERVICES

NO_TABLES = "nothing"
"""Name of the revision of a schema without tables."""


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """Revisions of one service's schema before and after the command."""

    service: str
    before: str
    after: str
    partition: str = DEFAULT_PARTITION


async def migrate_all(
    admin_url: str,
    database_urls: Mapping[str, tuple[str, str]],
    *,
    check_only: bool,
    partition: str = DEFAULT_PARTITION,
) -> list[SchemaChange]:
    """Upgrades, or only checks, the schemas of one partition.

    Args:
        admin_url: URL of a superuser, or of a role that may create roles, schemas and extensions.
        database_urls: Service and worker URL by service; the roles get their passwords. A
            service without them keeps its present roles.
        check_only: Change nothing, and fail if a schema is outdated.
        partition: Name of the partition.

    Raises:
        FailedPreconditionError: A schema is ahead of this release, or behind with ``check_only``.
        UnavailableError: The database cannot be reached.
    """
    done = []
    for spec in SERVICES:
        before = await spec.migrations.version(admin_url) or NO_TABLES
        if check_only:
            await spec.migrations.check(admin_url, partition)
        else:
            passwords = _passwords(database_urls.get(spec.name, ("", "")))
            await spec.migrations.upgrade(admin_url, passwords, partition)
        done.append(SchemaChange(spec.name, before, spec.migrations.head, partition))
    return done


async def downgrade(
    admin_url: str, service: str, revision: str | None, partition: str = DEFAULT_PARTITION
) -> SchemaChange:
    """Downgrades the schema of one service on one partition.

    Args:
        admin_url: As for `migrate_all`.
        service: Name of the service.
        revision: The revision to go back to; None for a schema without tables.
        partition: Name of the partition.

    Raises:
        UsageError: There is no such service or revision.
        FailedPreconditionError: The schema is behind that revision, or ahead of this release.
        UnavailableError: The database cannot be reached.
    """
    migrations = migrations_of(service)
    if revision is not None and revision not in migrations.revisions:
        revisions = ", ".join(migrations.revisions)
        raise UsageError(
            f"{service} has no revision {revision!r}. It has {revisions}; {NO_TABLES!r} undoes all."
        )
    before = await migrations.version(admin_url) or NO_TABLES
    await migrations.downgrade(admin_url, revision)
    return SchemaChange(service, before, revision or NO_TABLES, partition)


def migrations_of(service: str) -> ServiceMigrations:
    """Returns the migrations of a service.

    Raises:
        UsageError: There is no such service.
    """
    for spec in SERVICES:
        if spec.name == service:
            return spec.migrations
    service_names = ", ".join(spec.name for spec in SERVICES)
    raise UsageError(f"There is no service {service!r}. Choose one of {service_names}.")


def run_downgrade(admin_urls: Mapping[str, str], service: str, revision: str) -> list[SchemaChange]:
    """Runs `downgrade` on all partitions, with the revision as typed; `NO_TABLES` means None."""
    to = None if revision == NO_TABLES else revision
    return [
        asyncio.run(downgrade(admin_url, service, to, partition))
        for partition, admin_url in admin_urls.items()
    ]


def _passwords(urls: tuple[str, str]) -> RolePasswords | None:
    service, worker = (urlsplit(url).password if url else None for url in urls)
    if service is None or worker is None:
        return None
    return RolePasswords(service=unquote(service), worker=unquote(worker))


def urls_of_services(partition: str = DEFAULT_PARTITION) -> dict[str, tuple[str, str]]:
    """Returns the database URLs of a partition that the services are configured with, by service.

    A service without URLs for it is left out.
    """
    urls = {}
    for spec in SERVICES:
        settings = spec.settings()
        if partition in settings.partitions:
            own = settings.of_partition(partition)
            urls[spec.name] = (own.database_url, own.worker_database_url)
    return urls


def run_migrate(admin_urls: Mapping[str, str], *, check_only: bool) -> list[SchemaChange]:
    """Runs `migrate_all` on all partitions, with the services' own settings.

    Args:
        admin_urls: URLs of administrators by partition.
        check_only: As for `migrate_all`.

    Raises:
        UsageError: A service has a partition that is not among them.
    """
    for name in {name for spec in SERVICES for name in spec.settings().partitions}:
        if name not in admin_urls:
            raise UsageError(
                f"No administrator for the partition {name!r}: set"
                f" STRATA_PARTITION_DATABASE_ADMIN_URLS__{name.upper()}."
            )
    return [
        change
        for partition, admin_url in admin_urls.items()
        for change in asyncio.run(
            migrate_all(
                admin_url,
                urls_of_services(partition),
                check_only=check_only,
                partition=partition,
            )
        )
    ]
