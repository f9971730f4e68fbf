"""Creates the first keys of an installation.

The first key of an organization is an organization key. It is created with access to the database;
all other keys can be created with calls of `AdminService`.
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from strata.gateway.auth.convert import name_violations
from strata.gateway.auth.domain import Authority, Hasher, KeyRecord, NewKey, key_id_of
from strata.gateway.auth.store import PostgresAdminStore, PostgresKeyLookup
from strata.gateway.settings import GatewaySettings
from strata.protocol.errors import InvalidArgumentError
from strata.shared.clock import SystemClock
from strata.shared.db import Database, sql
from strata.shared.ids import new_id
from strata.shared.scopes import OrganizationScope, Scope, with_included

LOCAL_NAME = "local"
PROJECT_NAME = "default"
ORGANIZATION_KEY_NAME = "first organization key"
PROJECT_KEY_NAME = "first key"

# Names are unique, so concurrent attempts to create them get the same rows.
_ACT_IN = sql("SELECT set_config('strata.organization_id', :organization_id, true)")
_ORGANIZATION = sql(
    "INSERT INTO gateway.organizations (organization_id, name) VALUES (:organization_id, :name)"
    " ON CONFLICT DO NOTHING"
)
_ORGANIZATION_ID = sql("SELECT organization_id FROM gateway.organizations WHERE name = :name")
_PROJECT = sql(
    "INSERT INTO gateway.projects (project_id, organization_id, name)"
    " VALUES (:project_id, :organization_id, :name) ON CONFLICT DO NOTHING"
)
_PROJECT_ID = sql(
    "SELECT project_id FROM gateway.projects"
    " WHERE organization_id = :organization_id AND name = :name"
)


@dataclass(frozen=True, slots=True)
class FirstKey:
    """A first key.

    Attributes:
        organization_id: The organization.
        project_id: The project; empty for an organization key.
        secret: The whole text of the key.
        created: False if the known key is still valid.
    """

    organization_id: str
    project_id: str
    secret: str = field(repr=False)
    created: bool


async def ensure_organization_key(
    settings: GatewaySettings, *, known_key: str | None = None, organization: str = LOCAL_NAME
) -> FirstKey:
    """Creates an organization and an organization key, if they are missing.

    The key of the organization "local", which an installation begins with, may administer the
    installation as well. Safe to repeat: what exists stays, and a valid known key is returned
    instead of a new one. The database must be migrated; the gateway need not run.

    Args:
        settings: The gateway's, for databases and pepper.
        known_key: The key of an earlier call.
        organization: Name of the organization.

    Raises:
        InvalidArgumentError: The name is not valid for an organization.
        UnavailableError: The database cannot be reached.
        ValueError: No pepper is configured.
    """
    if violations := name_violations(organization):
        problem = violations[0].description
        raise InvalidArgumentError(
            f"The name of the organization {problem}.", violations=violations
        )
    scopes = frozenset(OrganizationScope)
    if organization != LOCAL_NAME:
        scopes -= {OrganizationScope.INSTALLATION}
    async with _opened(settings) as parts:
        organization_id = await parts.organization(organization)
        record = await parts.valid(known_key)
        if (
            known_key is not None
            and record is not None
            and not record.project_id
            and record.organization_id == organization_id
            and with_included(record.scopes) >= scopes
        ):
            return FirstKey(organization_id, "", known_key, created=False)
        _, secret = await parts.store.create_organization_key(
            organization_id, NewKey(ORGANIZATION_KEY_NAME, scopes)
        )
        return FirstKey(organization_id, "", secret, created=True)


async def ensure_local_project(
    settings: GatewaySettings, organization_key: str, *, known_key: str | None = None
) -> FirstKey:
    """Creates the project "default" of an organization and a key of it, if they are missing.

    Safe to repeat, as `ensure_organization_key` is.

    Args:
        settings: The gateway's, for databases and pepper.
        organization_key: A key of the organization, with the scope ``organization.admin``.
        known_key: The project key of an earlier call.

    Raises:
        UnavailableError: The database cannot be reached.
        ValueError: No pepper is configured, or the organization key may not do so.
    """
    async with _opened(settings) as parts:
        administrator = await parts.valid(organization_key)
        if administrator is None or OrganizationScope.ADMIN not in administrator.scopes:
            raise ValueError("a valid organization key with the scope organization.admin is needed")
        organization_id = administrator.organization_id
        project_id = await parts.project(organization_id)
        record = await parts.valid(known_key)
        if (
            known_key is not None
            and record is not None
            and record.project_id == project_id
            # Older keys have no scope `approve`; their scope `run` includes it.
            and with_included(record.scopes) >= frozenset(Scope) - {Scope.APPROVE}
        ):
            return FirstKey(organization_id, project_id, known_key, created=False)
        _, secret = await parts.store.create_key(
            Authority(organization_id), project_id, NewKey(PROJECT_KEY_NAME, frozenset(Scope))
        )
        return FirstKey(organization_id, project_id, secret, created=True)


async def is_other_pepper(settings: GatewaySettings, known_keys: Iterable[str]) -> bool:
    """Returns whether the pepper is not the one with which known keys were made.

    A wrong pepper would invalidate all keys without an error. It is wrong if known keys are stored
    and none of them has the stored hash; if only some do not, those were changed themselves.

    Args:
        settings: The gateway's, for databases and pepper.
        known_keys: Keys of earlier calls, valid or not.

    Raises:
        UnavailableError: The database cannot be reached.
        ValueError: No pepper is configured.
    """
    async with _opened(settings) as parts:
        matches = [await parts.has_stored_hash(key) for key in known_keys]
    return False in matches and True not in matches


class _Parts:
    def __init__(self, database: Database, worker: Database, hasher: Hasher) -> None:
        self._database = database
        self._worker = worker
        self._hasher = hasher
        self.store = PostgresAdminStore(database, worker, hasher)

    async def organization(self, name: str) -> str:
        """Returns the id of the organization of this name, and creates it if there is none."""
        values = {"organization_id": new_id("organization"), "name": name}
        async with self._database.system_transaction() as connection:
            await connection.execute(_ACT_IN, values)
            await connection.execute(_ORGANIZATION, values)
        # It may have existed with another id, which this transaction cannot see.
        async with self._worker.system_transaction(read_only=True) as connection:
            return str((await connection.execute(_ORGANIZATION_ID, values)).scalar_one())

    async def project(self, organization_id: str) -> str:
        """Returns the id of the organization's project "default", and creates it if missing."""
        values = {
            "organization_id": organization_id,
            "project_id": new_id("project"),
            "name": PROJECT_NAME,
        }
        async with self._database.system_transaction() as connection:
            await connection.execute(_ACT_IN, values)
            await connection.execute(_PROJECT, values)
            return str((await connection.execute(_PROJECT_ID, values)).scalar_one())

    async def has_stored_hash(self, key: str) -> bool | None:
        """Returns whether a key has the hash that is stored; None if none is stored."""
        record = await self._record(key)
        if record is None:
            return None
        return hmac.compare_digest(record.secret_hash, self._hasher.digest(key))

    async def _record(self, key: str) -> KeyRecord | None:
        key_id = key_id_of(key)
        return None if key_id is None else await PostgresKeyLookup(self._worker).find(key_id)

    async def valid(self, key: str | None) -> KeyRecord | None:
        """Returns the record of a key that is valid now."""
        if key is None:
            return None
        record = await self._record(key)
        digest, now = self._hasher.digest(key), SystemClock().now()
        return record if record is not None and record.valid(digest, now) else None


@asynccontextmanager
async def _opened(settings: GatewaySettings) -> AsyncIterator[_Parts]:
    hasher = Hasher(settings.pepper())
    database, worker = (
        Database(
            url,
            pool_size=1,
            application_name="strata-bootstrap",
            prepared_statements=settings.prepared_statements,
        )
        for url in (settings.database_url, settings.worker_database_url)
    )
    try:
        yield _Parts(database, worker, hasher)
    finally:
        await database.close()
        await worker.close()
