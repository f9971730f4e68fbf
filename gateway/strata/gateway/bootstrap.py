"""The first organisation, project and key, without which nobody could make any."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from sqlalchemy import text

from strata.gateway.auth.domain import Hasher, Scope, key_id_of
from strata.gateway.auth.store import PostgresAdminStore, PostgresKeyLookup
from strata.gateway.settings import GatewaySettings
from strata.shared.clock import SystemClock
from strata.shared.context import Caller, RequestContext, use
from strata.shared.db import Database

LOCAL_NAME = "local"
PROJECT_NAME = "default"
KEY_NAME = "first key"

# The ids of the first organisation and project follow from its name, so that every
# attempt to make them, also two at once, makes the same.
_NAMESPACE = uuid.UUID("6a0c7c7e-53a4-5d0c-9b6e-3f6f3c0d1f52")

_ACT_IN = text("SELECT set_config('strata.organization_id', :organization_id, true)")
_ORGANIZATION = text(
    "INSERT INTO gateway.organizations (organization_id, name) VALUES (:organization_id, :name)"
    " ON CONFLICT DO NOTHING"
)
_PROJECT = text(
    "INSERT INTO gateway.projects (project_id, organization_id, name)"
    " VALUES (:project_id, :organization_id, :name) ON CONFLICT DO NOTHING"
)


@dataclass(frozen=True, slots=True)
class LocalProject:
    """What a first start leaves behind for the command line.

    Attributes:
        organization_id: The organisation.
        project_id: Its project "default".
        api_key: A whole, valid key with every scope.
        created_key: False if the key that was known is still valid.
    """

    organization_id: str
    project_id: str
    api_key: str = field(repr=False)
    created_key: bool


async def ensure_local_project(
    settings: GatewaySettings, *, known_key: str | None = None, organization: str = LOCAL_NAME
) -> LocalProject:
    """Makes the first organisation, its project "default" and a key, where they are missing.

    Safe to repeat: what is there stays, and as long as the known key is valid no other is
    made. The database must be migrated; the gateway need not run.

    Args:
        settings: The gateway's, for databases and pepper.
        known_key: The key of an earlier call, as it was kept.
        organization: Name of the organisation.

    Raises:
        UnavailableError: The database cannot be reached.
        ValueError: No pepper is configured.
    """
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
        return await _ensure(database, worker, hasher, known_key, organization)
    finally:
        await database.close()
        await worker.close()


async def _ensure(
    database: Database, worker: Database, hasher: Hasher, known_key: str | None, name: str
) -> LocalProject:
    organization_id = f"organization-{uuid.uuid5(_NAMESPACE, name)}"
    project_id = f"project-{uuid.uuid5(_NAMESPACE, f'{name}/{PROJECT_NAME}')}"
    values = {"organization_id": organization_id, "project_id": project_id}
    async with database.transaction(project_id=project_id) as connection:
        await connection.execute(_ACT_IN, values)
        await connection.execute(_ORGANIZATION, {**values, "name": name})
        await connection.execute(_PROJECT, {**values, "name": PROJECT_NAME})
    if known_key is not None and await _opens(worker, hasher, known_key, project_id):
        return LocalProject(organization_id, project_id, known_key, created_key=False)
    store = PostgresAdminStore(database, hasher)
    first = Caller(organization_id, project_id, "bootstrap", frozenset(Scope))
    with use(RequestContext(caller=first)):
        _, secret = await store.create_key(organization_id, project_id, KEY_NAME, Scope, None)
    return LocalProject(organization_id, project_id, secret, created_key=True)


async def _opens(worker: Database, hasher: Hasher, known_key: str, project_id: str) -> bool:
    key_id = key_id_of(known_key)
    record = await PostgresKeyLookup(worker).find(key_id) if key_id is not None else None
    return (
        record is not None
        and record.project_id == project_id
        # Keys from before there was this scope have it within `run`.
        and record.scopes >= frozenset(Scope) - {Scope.APPROVE}
        and record.valid(hasher.digest(known_key), SystemClock().now())
    )
