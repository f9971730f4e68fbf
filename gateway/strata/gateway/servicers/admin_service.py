"""`AdminService`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from strata.api.gateway.v1 import admin_service_pb2 as pb
from strata.api.gateway.v1 import admin_service_pb2_grpc as pb_grpc
from strata.gateway.auth import convert
from strata.gateway.auth.domain import AdminStore
from strata.gateway.runs.domain import RunStore
from strata.shared.clock import Clock
from strata.shared.context import require_caller
from strata.shared.db import Page, decode_page_token, page_limit
from strata.shared.ids import check_id

_USAGE_RANGE = timedelta(days=30)


class AdminServicer(pb_grpc.AdminServiceServicer):
    """Projects, keys and use of the caller's organisation.

    Args:
        store: Projects and keys.
        runs: For the use.
        clock: The time.
        version: Release of the server.
        on_revoked: Told the id of a key that was revoked here.
    """

    def __init__(
        self,
        store: AdminStore,
        runs: RunStore,
        clock: Clock,
        *,
        version: str,
        on_revoked: Callable[[str], None],
    ) -> None:
        self._store = store
        self._runs = runs
        self._clock = clock
        self._version = version
        self._on_revoked = on_revoked

    async def CreateProject(
        self, request: pb.CreateProjectRequest, context: Any
    ) -> pb.CreateProjectResponse:
        """Creates a project."""
        name, request_id = convert.new_project(request)
        organization = require_caller().organization_id
        project = await self._store.create_project(organization, name, request_id)
        return pb.CreateProjectResponse(project=convert.project_to_pb(project))

    async def ListProjects(
        self, request: pb.ListProjectsRequest, context: Any
    ) -> pb.ListProjectsResponse:
        """Lists projects by id."""
        limit = page_limit(request.page_size, maximum=500)
        key = decode_page_token("projects", request.page_token, (str,))
        found = await self._store.list_projects(
            require_caller().organization_id,
            after=str(key[0]) if key else None,
            limit=limit + 1,
        )
        page = Page.cut(found, limit, "projects", lambda project: (project.id,))
        return pb.ListProjectsResponse(
            projects=map(convert.project_to_pb, page.rows), next_page_token=page.next_page_token
        )

    async def CreateApiKey(
        self, request: pb.CreateApiKeyRequest, context: Any
    ) -> pb.CreateApiKeyResponse:
        """Makes a key and tells its secret, this once."""
        caller = require_caller()
        new = convert.new_key(request, self._clock.now())
        key, secret = await self._store.create_key(
            caller.organization_id,
            new.project_id or caller.project_id,
            new.name,
            new.scopes,
            new.expire_time,
        )
        return pb.CreateApiKeyResponse(api_key=convert.key_to_pb(key), secret=secret)

    async def ListApiKeys(
        self, request: pb.ListApiKeysRequest, context: Any
    ) -> pb.ListApiKeysResponse:
        """Lists the keys of a project by id."""
        caller = require_caller()
        if request.project_id:
            check_id(request.project_id, "project", field="project_id")
        project_id = request.project_id or caller.project_id
        limit = page_limit(request.page_size, maximum=500)
        scope = f"api_keys|{project_id}"
        key = decode_page_token(scope, request.page_token, (str,))
        found = await self._store.list_keys(
            caller.organization_id,
            project_id,
            after=str(key[0]) if key else None,
            limit=limit + 1,
        )
        page = Page.cut(found, limit, scope, lambda each: (each.id,))
        return pb.ListApiKeysResponse(
            api_keys=map(convert.key_to_pb, page.rows), next_page_token=page.next_page_token
        )

    async def RevokeApiKey(
        self, request: pb.RevokeApiKeyRequest, context: Any
    ) -> pb.RevokeApiKeyResponse:
        """Revokes a key: here at once, on other replicas when they look it up again."""
        key_id = check_id(request.api_key_id, "key", field="api_key_id")
        key = await self._store.revoke_key(require_caller().organization_id, key_id)
        self._on_revoked(key_id)
        return pb.RevokeApiKeyResponse(api_key=convert.key_to_pb(key))

    async def WhoAmI(self, request: pb.WhoAmIRequest, context: Any) -> pb.WhoAmIResponse:
        """Tells who the caller is."""
        caller = require_caller()
        project, key = await self._store.describe(
            caller.organization_id, caller.project_id, caller.principal
        )
        return pb.WhoAmIResponse(
            organization_id=caller.organization_id,
            project=convert.project_to_pb(project),
            api_key=convert.key_to_pb(key),
            server_version=self._version,
        )

    async def GetUsage(self, request: pb.GetUsageRequest, context: Any) -> pb.GetUsageResponse:
        """Sums the runs of a range of time."""
        now = self._clock.now()
        start, end = convert.usage_range(request, now - _USAGE_RANGE, now)
        total = await self._runs.usage(require_caller().project_id, start, end, request.agent_id)
        return convert.usage_sum_to_pb(total)
