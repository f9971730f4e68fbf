"""Projects and keys in PostgreSQL.

An administrator's statements run in a transaction with a second setting beside the
tenant, his organisation, with which the policies of these tables let him see all of
its projects and keys, and nothing of another. The lookup of a key by its id, before
any tenant is known, goes through the worker role, which is granted the columns that
the check needs and no others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from strata.gateway.auth.domain import ApiKey, Hasher, KeyRecord, Project, new_secret
from strata.shared.db import Database
from strata.shared.errors import AlreadyExistsError, NotFoundError, Reason
from strata.shared.ids import new_id

_PROJECT = "project_id, organization_id, name, create_time"
_KEY = "project_id, id, organization_id, name, scopes, create_time, revoke_time, expire_time"

_ACT_IN = text("SELECT set_config('strata.organization_id', :organization_id, true)")
_FIND_KEY = text(
    "SELECT project_id, id, organization_id, scopes, secret_hash, expire_time,"
    " revoke_time IS NOT NULL AS revoked FROM gateway.api_keys WHERE id = :id"
)
_INSERT_PROJECT = text(
    "INSERT INTO gateway.projects (project_id, organization_id, name, request_id)"
    " VALUES (:id, :organization_id, :name, CAST(:request_id AS text))"
    f" ON CONFLICT DO NOTHING RETURNING {_PROJECT}"
)
_SAME_PROJECT = text(
    f"SELECT {_PROJECT}, request_id FROM gateway.projects"
    " WHERE organization_id = :organization_id"
    " AND (request_id = CAST(:request_id AS text) OR name = :name)"
    " ORDER BY request_id = CAST(:request_id AS text) DESC NULLS LAST LIMIT 1"
)
_LIST_PROJECTS = text(
    f"SELECT {_PROJECT} FROM gateway.projects WHERE organization_id = :organization_id"
    " AND project_id > :after ORDER BY project_id LIMIT :limit"
)
_GET_PROJECT = text(
    f"SELECT {_PROJECT} FROM gateway.projects"
    " WHERE organization_id = :organization_id AND project_id = :project_id"
)
_INSERT_KEY = text(
    "INSERT INTO gateway.api_keys"
    " (project_id, id, organization_id, name, secret_hash, scopes, expire_time)"
    " SELECT project_id, :id, organization_id, :name, :secret_hash, CAST(:scopes AS text[]),"
    " CAST(:expire_time AS timestamptz) FROM gateway.projects"
    " WHERE organization_id = :organization_id AND project_id = :project_id"
    f" RETURNING {_KEY}"
)
_LIST_KEYS = text(
    f"SELECT {_KEY} FROM gateway.api_keys WHERE organization_id = :organization_id"
    " AND project_id = :project_id AND id > :after ORDER BY id LIMIT :limit"
)
_REVOKE_KEY = text(
    "UPDATE gateway.api_keys SET revoke_time = coalesce(revoke_time, now())"
    f" WHERE organization_id = :organization_id AND id = :id RETURNING {_KEY}"
)
_GET_KEY = text(
    f"SELECT {_KEY} FROM gateway.api_keys"
    " WHERE organization_id = :organization_id AND project_id = :project_id AND id = :id"
)


class PostgresKeyLookup:
    """`KeyLookup` as the worker role."""

    def __init__(self, worker: Database) -> None:
        self._worker = worker

    async def find(self, key_id: str) -> KeyRecord | None:
        """See `KeyLookup.find`."""
        async with self._worker.system_transaction(read_only=True) as connection:
            row = (await connection.execute(_FIND_KEY, {"id": key_id})).mappings().one_or_none()
        if row is None:
            return None
        return KeyRecord(
            project_id=row["project_id"],
            id=row["id"],
            organization_id=row["organization_id"],
            scopes=frozenset(row["scopes"]),
            secret_hash=bytes(row["secret_hash"]),
            revoked=row["revoked"],
            expire_time=row["expire_time"],
        )


class PostgresAdminStore:
    """`AdminStore` as the service role."""

    def __init__(self, database: Database, hasher: Hasher) -> None:
        self._database = database
        self._hasher = hasher

    async def create_project(
        self, organization_id: str, name: str, request_id: str | None
    ) -> Project:
        """See `AdminStore.create_project`."""
        values = {
            "id": new_id("project"),
            "organization_id": organization_id,
            "name": name,
            "request_id": request_id,
        }
        async with self._acting(organization_id, values["id"]) as connection:
            row = (await connection.execute(_INSERT_PROJECT, values)).mappings().one_or_none()
            if row is not None:
                return _project(row)
            same = (await connection.execute(_SAME_PROJECT, values)).mappings().one()
        if request_id is None or same["request_id"] != request_id:
            raise AlreadyExistsError(
                f"The organisation has a project named {name!r}.", metadata={"name": name}
            )
        if same["name"] != name:
            raise AlreadyExistsError(
                "The request_id was used before with another name.",
                reason=Reason.REQUEST_ID_REUSED,
                metadata={"request_id": request_id},
            )
        return _project(same)

    async def list_projects(
        self, organization_id: str, *, after: str | None, limit: int
    ) -> Sequence[Project]:
        """See `AdminStore.list_projects`."""
        values = {"organization_id": organization_id, "after": after or "", "limit": limit}
        async with self._acting(organization_id, read_only=True) as connection:
            found = await connection.execute(_LIST_PROJECTS, values)
            return [_project(row) for row in found.mappings()]

    async def create_key(
        self,
        organization_id: str,
        project_id: str,
        name: str,
        scopes: Iterable[str],
        expire_time: datetime | None,
    ) -> tuple[ApiKey, str]:
        """See `AdminStore.create_key`."""
        secret = new_secret()
        values = {
            "id": secret.key_id,
            "organization_id": organization_id,
            "project_id": project_id,
            "name": name,
            "secret_hash": self._hasher.digest(secret.text),
            "scopes": sorted(scopes),
            "expire_time": expire_time,
        }
        async with self._acting(organization_id) as connection:
            row = (await connection.execute(_INSERT_KEY, values)).mappings().one_or_none()
        if row is None:
            raise _project_not_found(project_id)
        return _key(row), secret.text

    async def list_keys(
        self, organization_id: str, project_id: str, *, after: str | None, limit: int
    ) -> Sequence[ApiKey]:
        """See `AdminStore.list_keys`."""
        values = {
            "organization_id": organization_id,
            "project_id": project_id,
            "after": after or "",
            "limit": limit,
        }
        async with self._acting(organization_id, read_only=True) as connection:
            await _require_project(connection, values)
            found = await connection.execute(_LIST_KEYS, values)
            return [_key(row) for row in found.mappings()]

    async def revoke_key(self, organization_id: str, key_id: str) -> ApiKey:
        """See `AdminStore.revoke_key`."""
        values = {"organization_id": organization_id, "id": key_id}
        async with self._acting(organization_id) as connection:
            row = (await connection.execute(_REVOKE_KEY, values)).mappings().one_or_none()
        if row is None:
            raise _key_not_found(key_id)
        return _key(row)

    async def describe(
        self, organization_id: str, project_id: str, key_id: str
    ) -> tuple[Project, ApiKey]:
        """See `AdminStore.describe`."""
        values = {"organization_id": organization_id, "project_id": project_id, "id": key_id}
        async with self._acting(organization_id, read_only=True) as connection:
            project = await _require_project(connection, values)
            row = (await connection.execute(_GET_KEY, values)).mappings().one_or_none()
        if row is None:
            raise _key_not_found(key_id)
        return project, _key(row)

    @asynccontextmanager
    async def _acting(
        self, organization_id: str, project_id: str | None = None, *, read_only: bool = False
    ) -> AsyncIterator[AsyncConnection]:
        async with self._database.transaction(
            project_id=project_id, read_only=read_only
        ) as connection:
            await connection.execute(_ACT_IN, {"organization_id": organization_id})
            yield connection


async def _require_project(connection: AsyncConnection, values: Mapping[str, object]) -> Project:
    row = (await connection.execute(_GET_PROJECT, values)).mappings().one_or_none()
    if row is None:
        raise _project_not_found(str(values["project_id"]))
    return _project(row)


def _project_not_found(project_id: str) -> NotFoundError:
    return NotFoundError(
        f"There is no project {project_id}.",
        reason=Reason.PROJECT_NOT_FOUND,
        metadata={"id": project_id},
    )


def _key_not_found(key_id: str) -> NotFoundError:
    return NotFoundError(
        f"There is no API key {key_id}.",
        reason=Reason.API_KEY_NOT_FOUND,
        metadata={"id": key_id},
    )


def _project(row: Mapping[Any, Any]) -> Project:
    return Project(row["project_id"], row["organization_id"], row["name"], row["create_time"])


def _key(row: Mapping[Any, Any]) -> ApiKey:
    return ApiKey(
        project_id=row["project_id"],
        id=row["id"],
        organization_id=row["organization_id"],
        name=row["name"],
        scopes=frozenset(row["scopes"]),
        create_time=row["create_time"],
        revoke_time=row["revoke_time"],
        expire_time=row["expire_time"],
    )
