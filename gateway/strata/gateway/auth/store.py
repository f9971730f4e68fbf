"""Organizations, projects and keys in PostgreSQL.

Row-level security limits an administrator to the data that the key may access. The statements of a
project key run with the project as their tenant, and see that project and its keys. Those of an
organization key run without a tenant and with another setting, the organization, for which the
policies of these tables show its projects and keys and nothing of another organization. Reads
before a tenant is known, or over all organizations, use the worker role, which is granted only the
columns that it needs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from strata.gateway.auth.domain import (
    ApiKey,
    Authority,
    Hasher,
    KeyRecord,
    NewKey,
    Organization,
    Project,
    new_secret,
)
from strata.protocol.errors import AlreadyExistsError, NotFoundError, Reason
from strata.shared.db import Database, DatabaseConnection, Row, sql
from strata.shared.idempotency.keys import check_same_request
from strata.shared.ids import new_id
from strata.shared.partitions import DEFAULT_PARTITION

_PROJECT = "project_id, organization_id, name, create_time, partition"
_KEY = "project_id, id, organization_id, name, scopes, create_time, revoke_time, expire_time"
_ORGANIZATION_KEY = _KEY.replace("project_id", "'' AS project_id")
_ORGANIZATION = "organization_id, name, create_time"

_ACT_IN = sql("SELECT set_config('strata.organization_id', :organization_id, true)")
_CHECKED = (
    "id, organization_id, scopes, secret_hash, expire_time, revoke_time IS NOT NULL AS revoked"
)
# Ids of keys are unique over both tables: they are random, and made by the server.
_FIND_KEY = sql(
    f"SELECT project_id, {_CHECKED}, (SELECT partition FROM gateway.projects"
    "  WHERE projects.project_id = api_keys.project_id) AS partition"
    " FROM gateway.api_keys WHERE id = :id"
    f" UNION ALL SELECT '', {_CHECKED}, NULL FROM gateway.organization_keys WHERE id = :id"
)
_INSERT_ORGANIZATION = sql(
    "INSERT INTO gateway.organizations (organization_id, name, request_id)"
    " VALUES (:organization_id, :name, CAST(:request_id AS text))"
    f" ON CONFLICT DO NOTHING RETURNING {_ORGANIZATION}"
)
_SAME_ORGANIZATION = sql(
    f"SELECT {_ORGANIZATION}, request_id FROM gateway.organizations"
    " WHERE request_id = CAST(:request_id AS text) OR name = :name"
    " ORDER BY request_id = CAST(:request_id AS text) DESC NULLS LAST LIMIT 1"
)
_LIST_ORGANIZATIONS = sql(
    f"SELECT {_ORGANIZATION} FROM gateway.organizations"
    " WHERE organization_id > :after ORDER BY organization_id LIMIT :limit"
)
_GET_ORGANIZATION = sql(
    f"SELECT {_ORGANIZATION} FROM gateway.organizations WHERE organization_id = :organization_id"
)
_INSERT_ORGANIZATION_KEY = sql(
    "INSERT INTO gateway.organization_keys"
    " (organization_id, id, name, secret_hash, scopes, expire_time)"
    " SELECT organization_id, :id, :name, :secret_hash, CAST(:scopes AS text[]),"
    " CAST(:expire_time AS timestamptz) FROM gateway.organizations"
    f" WHERE organization_id = :organization_id RETURNING {_ORGANIZATION_KEY}"
)
_LIST_ORGANIZATION_KEYS = sql(
    f"SELECT {_ORGANIZATION_KEY} FROM gateway.organization_keys"
    " WHERE organization_id = :organization_id AND id > :after ORDER BY id LIMIT :limit"
)
_REVOKE_ORGANIZATION_KEY = sql(
    "UPDATE gateway.organization_keys SET revoke_time = coalesce(revoke_time, now())"
    f" WHERE organization_id = :organization_id AND id = :id RETURNING {_ORGANIZATION_KEY}"
)
_GET_ORGANIZATION_KEY = sql(
    f"SELECT {_ORGANIZATION_KEY} FROM gateway.organization_keys"
    " WHERE organization_id = :organization_id AND id = :id"
)
_INSERT_PROJECT = sql(
    "INSERT INTO gateway.projects (project_id, organization_id, name, request_id, partition)"
    " VALUES (:id, :organization_id, :name, CAST(:request_id AS text), :partition)"
    f" ON CONFLICT DO NOTHING RETURNING {_PROJECT}"
)
_PROJECTS_BY_PARTITION = sql(
    "SELECT partition, count(*) AS projects FROM gateway.projects"
    " WHERE partition = ANY(:partitions) GROUP BY partition"
)
_SAME_PROJECT = sql(
    f"SELECT {_PROJECT}, request_id FROM gateway.projects"
    " WHERE organization_id = :organization_id"
    " AND (request_id = CAST(:request_id AS text) OR name = :name)"
    " ORDER BY request_id = CAST(:request_id AS text) DESC NULLS LAST LIMIT 1"
)
_LIST_PROJECTS = sql(
    f"SELECT {_PROJECT} FROM gateway.projects WHERE organization_id = :organization_id"
    " AND project_id > :after ORDER BY project_id LIMIT :limit"
)
_GET_PROJECT = sql(
    f"SELECT {_PROJECT} FROM gateway.projects"
    " WHERE organization_id = :organization_id AND project_id = :project_id"
)
_INSERT_KEY = sql(
    "INSERT INTO gateway.api_keys"
    " (project_id, id, organization_id, name, secret_hash, scopes, expire_time)"
    " SELECT project_id, :id, organization_id, :name, :secret_hash, CAST(:scopes AS text[]),"
    " CAST(:expire_time AS timestamptz) FROM gateway.projects"
    " WHERE organization_id = :organization_id AND project_id = :project_id"
    f" RETURNING {_KEY}"
)
_LIST_KEYS = sql(
    f"SELECT {_KEY} FROM gateway.api_keys WHERE organization_id = :organization_id"
    " AND project_id = :project_id AND id > :after ORDER BY id LIMIT :limit"
)
_REVOKE_KEY = sql(
    "UPDATE gateway.api_keys SET revoke_time = coalesce(revoke_time, now())"
    f" WHERE organization_id = :organization_id AND id = :id RETURNING {_KEY}"
)
_GET_KEY = sql(
    f"SELECT {_KEY} FROM gateway.api_keys"
    " WHERE organization_id = :organization_id AND project_id = :project_id AND id = :id"
)


class PostgresKeyLookup:
    """`KeyLookup` as the worker role.

    Args:
        worker: Connections with the worker role.
        note_partition: Called with a project and its partition, which are read with the key.
    """

    def __init__(
        self, worker: Database, note_partition: Callable[[str, str], None] | None = None
    ) -> None:
        self._worker = worker
        self._note_partition = note_partition

    async def find(self, key_id: str) -> KeyRecord | None:
        """See `KeyLookup.find`."""
        rows = await self._worker.system_query(_FIND_KEY, {"id": key_id})
        if not rows:
            return None
        row = rows[0]
        partition = row.partition or DEFAULT_PARTITION
        if row.project_id and self._note_partition is not None:
            self._note_partition(row.project_id, partition)
        return KeyRecord(
            project_id=row.project_id,
            id=row.id,
            organization_id=row.organization_id,
            scopes=frozenset(row.scopes),
            secret_hash=bytes(row.secret_hash),
            revoked=row.revoked,
            expire_time=row.expire_time,
            partition=partition,
        )


class PostgresAdminStore:
    """`AdminStore` in PostgreSQL.

    Args:
        database: Connections with the service role.
        worker: Connections with the worker role, for statements over all organizations.
        hasher: Hashes secrets.
        partitions: The partitions for new projects.
    """

    def __init__(
        self,
        database: Database,
        worker: Database,
        hasher: Hasher,
        partitions: Sequence[str] = (DEFAULT_PARTITION,),
    ) -> None:
        self._database = database
        self._worker = worker
        self._hasher = hasher
        self._partitions = partitions

    async def create_organization(self, name: str, request_id: str | None) -> Organization:
        """See `AdminStore.create_organization`."""
        values = {
            "organization_id": new_id("organization"),
            "name": name,
            "request_id": request_id,
        }
        async with self._within(Authority(str(values["organization_id"]))) as connection:
            row = (await connection.execute(_INSERT_ORGANIZATION, values)).one_or_none()
        if row is not None:
            return _organization(row)
        async with self._worker.system_transaction(read_only=True) as connection:
            same = (await connection.execute(_SAME_ORGANIZATION, values)).one()
        _check_same(same, name, request_id, "The installation has an organization")
        return _organization(same)

    async def list_organizations(self, *, after: str | None, limit: int) -> Sequence[Organization]:
        """See `AdminStore.list_organizations`."""
        values = {"after": after or "", "limit": limit}
        async with self._worker.system_transaction(read_only=True) as connection:
            result = await connection.execute(_LIST_ORGANIZATIONS, values)
            return [_organization(row) for row in result]

    async def create_organization_key(
        self, organization_id: str, new: NewKey
    ) -> tuple[ApiKey, str]:
        """See `AdminStore.create_organization_key`."""
        values, secret = self._new_key(new)
        values["organization_id"] = organization_id
        async with self._within(Authority(organization_id)) as connection:
            result = await connection.execute(_INSERT_ORGANIZATION_KEY, values)
            row = result.one_or_none()
        if row is None:
            raise _organization_not_found(organization_id)
        return _key(row), secret

    async def list_organization_keys(
        self, organization_id: str, *, after: str | None, limit: int
    ) -> Sequence[ApiKey]:
        """See `AdminStore.list_organization_keys`."""
        values = {"organization_id": organization_id, "after": after or "", "limit": limit}
        async with self._within(Authority(organization_id), read_only=True) as connection:
            await _require_organization(connection, values)
            result = await connection.execute(_LIST_ORGANIZATION_KEYS, values)
            return [_key(row) for row in result]

    async def revoke_organization_key(self, organization_id: str, key_id: str) -> ApiKey:
        """See `AdminStore.revoke_organization_key`."""
        values = {"organization_id": organization_id, "id": key_id}
        async with self._within(Authority(organization_id)) as connection:
            await _require_organization(connection, values)
            result = await connection.execute(_REVOKE_ORGANIZATION_KEY, values)
            row = result.one_or_none()
        if row is None:
            raise _key_not_found(key_id)
        return _key(row)

    async def create_project(
        self, organization_id: str, name: str, request_id: str | None, partition: str = ""
    ) -> Project:
        """See `AdminStore.create_project`."""
        values = {
            "id": new_id("project"),
            "organization_id": organization_id,
            "name": name,
            "request_id": request_id,
            "partition": partition or await self._emptiest_partition(),
        }
        async with self._within(Authority(organization_id)) as connection:
            row = (await connection.execute(_INSERT_PROJECT, values)).one_or_none()
            if row is not None:
                return _project(row)
            same = (await connection.execute(_SAME_PROJECT, values)).one()
        _check_same(same, name, request_id, "The organization has a project")
        if partition and request_id is not None:
            check_same_request(request_id, same["partition"], partition)
        return _project(same)

    async def _emptiest_partition(self) -> str:
        """Returns the partition for new projects that has the fewest projects, or the first one."""
        if len(self._partitions) == 1:
            return self._partitions[0]
        values = {"partitions": list(self._partitions)}
        rows = await self._worker.system_query(_PROJECTS_BY_PARTITION, values)
        counts = {row.partition: row.projects for row in rows}
        return min(self._partitions, key=lambda name: counts.get(name, 0))

    async def list_projects(
        self, organization_id: str, *, after: str | None, limit: int
    ) -> Sequence[Project]:
        """See `AdminStore.list_projects`."""
        values = {"organization_id": organization_id, "after": after or "", "limit": limit}
        async with self._within(Authority(organization_id), read_only=True) as connection:
            result = await connection.execute(_LIST_PROJECTS, values)
            return [_project(row) for row in result]

    async def get_project(self, authority: Authority, project_id: str) -> Project:
        """See `AdminStore.get_project`."""
        values = {"organization_id": authority.organization_id, "project_id": project_id}
        async with self._within(authority, read_only=True) as connection:
            return await _require_project(connection, values)

    async def create_key(
        self, authority: Authority, project_id: str, new: NewKey
    ) -> tuple[ApiKey, str]:
        """See `AdminStore.create_key`."""
        values, secret = self._new_key(new)
        values |= {"organization_id": authority.organization_id, "project_id": project_id}
        async with self._within(authority) as connection:
            row = (await connection.execute(_INSERT_KEY, values)).one_or_none()
        if row is None:
            raise _project_not_found(project_id)
        return _key(row), secret

    async def list_keys(
        self, authority: Authority, project_id: str, *, after: str | None, limit: int
    ) -> Sequence[ApiKey]:
        """See `AdminStore.list_keys`."""
        values = {
            "organization_id": authority.organization_id,
            "project_id": project_id,
            "after": after or "",
            "limit": limit,
        }
        async with self._within(authority, read_only=True) as connection:
            await _require_project(connection, values)
            result = await connection.execute(_LIST_KEYS, values)
            return [_key(row) for row in result]

    async def revoke_key(self, authority: Authority, key_id: str) -> ApiKey:
        """See `AdminStore.revoke_key`."""
        values = {"organization_id": authority.organization_id, "id": key_id}
        async with self._within(authority) as connection:
            row = (await connection.execute(_REVOKE_KEY, values)).one_or_none()
        if row is None:
            raise _key_not_found(key_id)
        return _key(row)

    async def describe(self, authority: Authority, key_id: str) -> tuple[Project | None, ApiKey]:
        """See `AdminStore.describe`."""
        values = {
            "organization_id": authority.organization_id,
            "project_id": authority.project_id,
            "id": key_id,
        }
        in_project = bool(authority.project_id)
        async with self._within(authority, read_only=True) as connection:
            project = await _require_project(connection, values) if in_project else None
            statement = _GET_KEY if in_project else _GET_ORGANIZATION_KEY
            row = (await connection.execute(statement, values)).one_or_none()
        if row is None:
            raise _key_not_found(key_id)
        return project, _key(row)

    def _new_key(self, new: NewKey) -> tuple[dict[str, Any], str]:
        secret = new_secret()
        values = {
            "id": secret.key_id,
            "name": new.name,
            "secret_hash": self._hasher.digest(secret.text),
            "scopes": sorted(new.scopes),
            "expire_time": new.expire_time,
        }
        return values, secret.text

    @asynccontextmanager
    async def _within(
        self, authority: Authority, *, read_only: bool = False
    ) -> AsyncIterator[DatabaseConnection]:
        if authority.project_id:
            async with self._database.transaction(
                project_id=authority.project_id, read_only=read_only
            ) as connection:
                yield connection
            return
        async with self._database.system_transaction(read_only=read_only) as connection:
            await connection.execute(_ACT_IN, {"organization_id": authority.organization_id})
            yield connection


def _check_same(same: Row, name: str, request_id: str | None, what_has_the_name: str) -> None:
    if request_id is None or same["request_id"] != request_id:
        raise AlreadyExistsError(f"{what_has_the_name} named {name!r}.", metadata={"name": name})
    check_same_request(request_id, same["name"], name)


async def _require_organization(
    connection: DatabaseConnection, values: Mapping[str, object]
) -> None:
    if (await connection.execute(_GET_ORGANIZATION, values)).one_or_none() is None:
        raise _organization_not_found(str(values["organization_id"]))


async def _require_project(connection: DatabaseConnection, values: Mapping[str, object]) -> Project:
    row = (await connection.execute(_GET_PROJECT, values)).one_or_none()
    if row is None:
        raise _project_not_found(str(values["project_id"]))
    return _project(row)


def _organization_not_found(organization_id: str) -> NotFoundError:
    return NotFoundError(
        f"There is no organization {organization_id}.",
        reason=Reason.ORGANIZATION_NOT_FOUND,
        metadata={"id": organization_id},
    )


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


def _organization(row: Row) -> Organization:
    return Organization(row["organization_id"], row["name"], row["create_time"])


def _project(row: Row) -> Project:
    return Project(
        row["project_id"], row["organization_id"], row["name"], row["create_time"], row["partition"]
    )


def _key(row: Row) -> ApiKey:
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
