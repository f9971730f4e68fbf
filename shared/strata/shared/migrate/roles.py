"""The three roles of a service, its schema, and the extensions all services share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg

from strata.protocol.errors import FailedPreconditionError, Reason
from strata.shared.db.driver_connection import DriverConnection
from strata.shared.db.policies import SHARED_SCHEMA, TENANT_TYPE, tenant_type_sql
from strata.shared.migrate.passwords import scram_verifier
from strata.shared.partitions import DEFAULT_PARTITION

REQUIRED_EXTENSIONS = ("pg_trgm", "btree_gin", "unaccent")

_ATTEMPTS = 5
# Begins the comment on the schema that all services share.
_MARK = "partition "


@dataclass(frozen=True)
class ServiceRoles:
    """The names of a service's roles.

    Attributes:
        owner: Owns schema and tables, cannot log in; migrations run as it.
        service: Login of the service: reads and writes rows of the tenant that a transaction sets.
        worker: Login of the service's background work: has only what the migrations grant.
    """

    owner: str
    service: str
    worker: str

    @classmethod
    def of(cls, service: str) -> ServiceRoles:
        """Returns the roles of a service."""
        return cls(f"strata_{service}_owner", f"strata_{service}", f"strata_{service}_worker")


@dataclass(frozen=True)
class RolePasswords:
    """Passwords for the roles that log in; the caller stores them."""

    service: str
    worker: str


async def ensure_roles(
    admin: DriverConnection, roles: ServiceRoles, passwords: RolePasswords | None
) -> None:
    """Creates missing roles and sets the passwords, if there are any, and checks the roles.

    Without passwords the roles are managed elsewhere and are only checked.

    Raises:
        FailedPreconditionError: A role is missing, or has a privilege that it must not have.
    """
    if passwords is not None:
        await _ensure_role(admin, roles.owner, "NOLOGIN")
        for role, password in (
            (roles.service, passwords.service),
            (roles.worker, passwords.worker),
        ):
            await _ensure_role(admin, role, f"LOGIN PASSWORD '{scram_verifier(password)}'")
    await _check_roles(admin, roles)
    if await admin.fetchval("SELECT current_setting('is_superuser')") != "on":
        # The creator of a role may administer it, but needs a grant to act as it.
        await admin.execute(f"GRANT {roles.owner} TO CURRENT_USER")


async def _ensure_role(admin: DriverConnection, role: str, options: str) -> None:
    """Creates or alters a role.

    Roles belong to the whole database cluster, so a migration of another database can change the
    same role at the same time. Such conflicts are retried.
    """
    for attempt in range(_ATTEMPTS):
        exists = await admin.fetchval(f"SELECT 1 FROM pg_roles WHERE rolname = '{role}'")
        verb = "ALTER" if exists else "CREATE"
        try:
            await admin.execute(f"{verb} ROLE {role} {options}")
            break
        except (
            asyncpg.DuplicateObjectError,
            asyncpg.UniqueViolationError,
            asyncpg.InternalServerError,  # "tuple concurrently updated"
        ):
            if attempt == _ATTEMPTS - 1:
                raise
            await asyncio.sleep(0.05 * (attempt + 1))


async def _check_roles(admin: DriverConnection, roles: ServiceRoles) -> None:
    names = (roles.owner, roles.service, roles.worker)
    role_rows = await admin.fetch(
        "SELECT rolname, rolsuper OR rolbypassrls AS unbound FROM pg_roles WHERE rolname = ANY($1)",
        names,
    )
    is_unbound: dict[str, bool] = {row["rolname"]: row["unbound"] for row in role_rows}
    missing = [name for name in names if name not in is_unbound]
    if missing:
        raise _refused(f"these database roles are missing: {', '.join(missing)}")
    unbound = [name for name in names if is_unbound[name]]
    if unbound:
        raise _refused(f"these roles could read every tenant's rows: {', '.join(unbound)}")
    for name in (roles.service, roles.worker):
        member = f"SELECT pg_has_role('{name}', '{roles.owner}', 'MEMBER')"
        if await admin.fetchval(member):
            raise _refused(f"{name} must not be a member of {roles.owner}")


def _refused(message: str) -> FailedPreconditionError:
    return FailedPreconditionError(message, reason=Reason.SCHEMA_OUTDATED)


async def ensure_extensions(admin: DriverConnection) -> None:
    """Creates the extensions that all services share, in `public`.

    Raises:
        FailedPreconditionError: The database server lacks a required extension.
    """
    names = REQUIRED_EXTENSIONS
    rows = await admin.fetch(
        "SELECT name, installed_version IS NOT NULL FROM pg_available_extensions"
        " WHERE name = ANY($1)",
        names,
    )
    available: dict[str, bool] = {row[0]: row[1] for row in rows}
    missing = [name for name in REQUIRED_EXTENSIONS if name not in available]
    if missing:
        raise _refused(f"the database server lacks the extensions {', '.join(missing)}")
    for name, installed in available.items():
        if not installed:
            await admin.execute(f"CREATE EXTENSION IF NOT EXISTS {name} WITH SCHEMA public")


async def ensure_tenant_type(admin: DriverConnection) -> None:
    """Creates the type that all services share, see `strata.shared.db.policies.TENANT_TYPE`."""
    if await has_tenant_type(admin):
        # Another administrator may own it.
        return
    await admin.execute(f"CREATE SCHEMA IF NOT EXISTS {SHARED_SCHEMA}")
    await admin.execute(f"GRANT USAGE ON SCHEMA {SHARED_SCHEMA} TO PUBLIC")
    await admin.execute(tenant_type_sql())


async def has_tenant_type(connection: DriverConnection) -> bool:
    """Returns whether the database has the type that all services share."""
    return bool(await connection.fetchval(f"SELECT to_regtype('{TENANT_TYPE}') IS NOT NULL"))


async def ensure_partition(admin: DriverConnection, partition: str, *, is_new: bool) -> None:
    """Marks the database as belonging to a partition; the default one has no mark.

    Args:
        admin: The connection.
        partition: The partition.
        is_new: The database has no tables of the service.

    Raises:
        FailedPreconditionError: It is the database of another partition, or has tables of the
            default one (``PARTITION_NOT_CONFIGURED``).
    """
    if is_new and partition != DEFAULT_PARTITION and not await _partition_mark(admin):
        await admin.execute(f"COMMENT ON SCHEMA {SHARED_SCHEMA} IS '{_MARK}{partition}'")
    await check_partition(admin, partition)


async def check_partition(connection: DriverConnection, partition: str) -> None:
    """Checks that a database belongs to a partition, because URLs can be swapped by mistake.

    Raises:
        FailedPreconditionError: It is not (``PARTITION_NOT_CONFIGURED``).
    """
    stored = (await _partition_mark(connection)).removeprefix(_MARK) or DEFAULT_PARTITION
    if stored != partition:
        raise FailedPreconditionError(
            f"the database belongs to the partition {stored!r}, not to {partition!r}: its URL"
            " belongs to another partition, or it was not migrated as that one",
            reason=Reason.PARTITION_NOT_CONFIGURED,
            metadata={"partition": partition, "found": stored},
        )


async def _partition_mark(connection: DriverConnection) -> str:
    schema = f"to_regnamespace('{SHARED_SCHEMA}')"
    query = f"SELECT obj_description({schema}, 'pg_namespace')"
    comment = str(await connection.fetchval(query) or "")
    return comment if comment.startswith(_MARK) else ""


async def ensure_schema(admin: DriverConnection, schema: str, roles: ServiceRoles) -> None:
    """Creates the schema, and grants the roles their privileges on it and on future tables."""
    await admin.execute(f"CREATE SCHEMA IF NOT EXISTS {schema} AUTHORIZATION {roles.owner}")
    owner = await admin.fetchval(
        f"SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = '{schema}'"
    )
    if owner != roles.owner:
        raise _refused(f"the schema {schema} belongs to {owner}, not to {roles.owner}")
    for statement in _schema_grants(schema, roles):
        await admin.execute(statement)


def _schema_grants(schema: str, roles: ServiceRoles) -> Sequence[str]:
    defaults = f"ALTER DEFAULT PRIVILEGES FOR ROLE {roles.owner} IN SCHEMA {schema}"
    return (
        f"GRANT USAGE ON SCHEMA {schema} TO {roles.service}, {roles.worker}",
        f"{defaults} GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {roles.service}",
        f"{defaults} GRANT USAGE ON SEQUENCES TO {roles.service}, {roles.worker}",
    )
