"""Servicer of `AdminService`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from strata.api.gateway.v1 import admin_service_pb2 as pb
from strata.api.gateway.v1 import admin_service_pb2_grpc as pb_grpc
from strata.gateway.auth import convert
from strata.gateway.auth.domain import AdminStore, Authority, check_granted
from strata.gateway.runs.domain.runs import UsageSum
from strata.gateway.runs_of_projects import RunsOfProjects
from strata.shared.clock import Clock
from strata.shared.context import require_caller, require_scope
from strata.shared.db import Page, decode_page_token, page_limit
from strata.shared.ids import check_id
from strata.shared.scopes import OrganizationScope

KEY_REVOKED = "KEY_REVOKED"
"""State reason of a schedule that was paused because its key was revoked."""

_USAGE_RANGE = timedelta(days=30)


class AdminServicer(pb_grpc.AdminServiceServicer):
    """Organizations, projects, keys and usage within the authority of the caller's key.

    Args:
        store: Projects and keys.
        runs: For usage, and for delayed runs and schedules of a revoked key.
        clock: The time.
        version: Release of the server.
        partitions: The partitions for new projects.
        on_revoked: Called with the id of a key that was revoked here.
    """

    def __init__(
        self,
        store: AdminStore,
        runs: RunsOfProjects,
        clock: Clock,
        *,
        version: str,
        partitions: Sequence[str],
        on_revoked: Callable[[str], None],
    ) -> None:
        self._store = store
        self._runs = runs
        self._clock = clock
        self._version = version
        self._partitions = partitions
        self._on_revoked = on_revoked

    async def CreateOrganization(
        self, request: pb.CreateOrganizationRequest, context: Any
    ) -> pb.CreateOrganizationResponse:
        """Creates an organization."""
        organization = await self._store.create_organization(*convert.new_organization(request))
        return pb.CreateOrganizationResponse(organization=convert.organization_to_pb(organization))

    async def ListOrganizations(
        self, request: pb.ListOrganizationsRequest, context: Any
    ) -> pb.ListOrganizationsResponse:
        """Lists organizations by id."""
        limit, after = _limit_and_start("organizations", request)
        rows = await self._store.list_organizations(after=after, limit=limit + 1)
        page = Page.cut(rows, limit, "organizations", lambda organization: (organization.id,))
        return pb.ListOrganizationsResponse(
            organizations=map(convert.organization_to_pb, page.rows),
            next_page_token=page.next_page_token,
        )

    async def CreateOrganizationKey(
        self, request: pb.CreateOrganizationKeyRequest, context: Any
    ) -> pb.CreateOrganizationKeyResponse:
        """Creates an organization key and returns its secret, only this time."""
        new = convert.new_organization_key(request, self._clock.now())
        organization_id = _organization(request.organization_id)
        check_granted(require_caller(), new.scopes)
        key, secret = await self._store.create_organization_key(organization_id, new)
        return pb.CreateOrganizationKeyResponse(
            organization_key=convert.key_to_pb(key), secret=secret
        )

    async def ListOrganizationKeys(
        self, request: pb.ListOrganizationKeysRequest, context: Any
    ) -> pb.ListOrganizationKeysResponse:
        """Lists the organization keys of an organization by id."""
        organization_id = _organization(request.organization_id)
        scope = f"organization_keys|{organization_id}"
        limit, after = _limit_and_start(scope, request)
        rows = await self._store.list_organization_keys(
            organization_id, after=after, limit=limit + 1
        )
        page = Page.cut(rows, limit, scope, lambda key: (key.id,))
        return pb.ListOrganizationKeysResponse(
            organization_keys=map(convert.key_to_pb, page.rows),
            next_page_token=page.next_page_token,
        )

    async def RevokeOrganizationKey(
        self, request: pb.RevokeOrganizationKeyRequest, context: Any
    ) -> pb.RevokeOrganizationKeyResponse:
        """Revokes an organization key: here at once, in other gateways when their cache expires."""
        key_id = check_id(request.api_key_id, "key", field="api_key_id")
        organization_id = _organization(request.organization_id)
        key = await self._store.revoke_organization_key(organization_id, key_id)
        self._on_revoked(key_id)
        return pb.RevokeOrganizationKeyResponse(organization_key=convert.key_to_pb(key))

    async def CreateProject(
        self, request: pb.CreateProjectRequest, context: Any
    ) -> pb.CreateProjectResponse:
        """Creates a project."""
        name, request_id = convert.new_project(request, self._partitions)
        organization = require_caller().organization_id
        project = await self._store.create_project(
            organization, name, request_id, request.partition
        )
        return pb.CreateProjectResponse(project=convert.project_to_pb(project))

    async def ListProjects(
        self, request: pb.ListProjectsRequest, context: Any
    ) -> pb.ListProjectsResponse:
        """Lists projects by id."""
        limit, after = _limit_and_start("projects", request)
        rows = await self._store.list_projects(
            require_caller().organization_id, after=after, limit=limit + 1
        )
        page = Page.cut(rows, limit, "projects", lambda project: (project.id,))
        return pb.ListProjectsResponse(
            projects=map(convert.project_to_pb, page.rows), next_page_token=page.next_page_token
        )

    async def CreateApiKey(
        self, request: pb.CreateApiKeyRequest, context: Any
    ) -> pb.CreateApiKeyResponse:
        """Creates a project key and returns its secret, only this time."""
        caller = require_caller()
        project_id = convert.project_of(request.project_id, caller.project_id)
        new = convert.new_key(request, self._clock.now())
        authority = Authority.of(caller)
        if authority.project_id:
            check_granted(caller, new.scopes)
        key, secret = await self._store.create_key(authority, project_id, new)
        return pb.CreateApiKeyResponse(api_key=convert.key_to_pb(key), secret=secret)

    async def ListApiKeys(
        self, request: pb.ListApiKeysRequest, context: Any
    ) -> pb.ListApiKeysResponse:
        """Lists the keys of a project by id."""
        caller = require_caller()
        project_id = convert.project_of(request.project_id, caller.project_id)
        scope = f"api_keys|{project_id}"
        limit, after = _limit_and_start(scope, request)
        rows = await self._store.list_keys(
            Authority.of(caller), project_id, after=after, limit=limit + 1
        )
        page = Page.cut(rows, limit, scope, lambda key: (key.id,))
        return pb.ListApiKeysResponse(
            api_keys=map(convert.key_to_pb, page.rows), next_page_token=page.next_page_token
        )

    async def RevokeApiKey(
        self, request: pb.RevokeApiKeyRequest, context: Any
    ) -> pb.RevokeApiKeyResponse:
        """Revokes a key: here at once, in other gateways after their cache expires."""
        key_id = check_id(request.api_key_id, "key", field="api_key_id")
        key = await self._store.revoke_key(Authority.of(require_caller()), key_id)
        self._on_revoked(key_id)
        project_runs = await self._runs.of(key.project_id)
        if request.pause_schedules:
            count = await project_runs.schedules.pause_of_principal(
                key.project_id, key_id, KEY_REVOKED
            )
        else:
            count = await project_runs.schedules.count_of_principal(key.project_id, key_id)
        delayed = await project_runs.runs.delayed_of_principal(key.project_id, key_id)
        if request.pause_schedules:
            for run_id in delayed:
                await project_runs.cancel_run(key.project_id, run_id)
        return pb.RevokeApiKeyResponse(
            api_key=convert.key_to_pb(key), schedule_count=count, delayed_run_count=len(delayed)
        )

    async def WhoAmI(self, request: pb.WhoAmIRequest, context: Any) -> pb.WhoAmIResponse:
        """Returns the caller's key and project."""
        caller = require_caller()
        project, key = await self._store.describe(Authority.of(caller), caller.principal)
        return pb.WhoAmIResponse(
            organization_id=caller.organization_id,
            project=convert.project_to_pb(project) if project is not None else None,
            api_key=convert.key_to_pb(key),
            server_version=self._version,
        )

    async def GetUsage(self, request: pb.GetUsageRequest, context: Any) -> pb.GetUsageResponse:
        """Sums the runs of a project in a time range."""
        project_id = _project_of_usage(request)
        now = self._clock.now()
        start, end = convert.usage_range(request, now - _USAGE_RANGE, now)
        await self._check_project(project_id)
        project_runs = await self._runs.of(project_id)
        total = await project_runs.runs.usage(project_id, start, end, request.agent_id)
        return convert.usage_sum_to_pb(total)

    async def GetUsageSeries(
        self, request: pb.GetUsageSeriesRequest, context: Any
    ) -> pb.GetUsageSeriesResponse:
        """Sums the runs of a project for each bucket of a time range."""
        project_id = _project_of_usage(request)
        now = self._clock.now()
        starts, end = convert.usage_buckets(request, now - _USAGE_RANGE, now)
        await self._check_project(project_id)
        sums: Sequence[UsageSum] = []
        if starts:
            project_runs = await self._runs.of(project_id)
            sums = await project_runs.runs.usage_series(project_id, starts, end, request.agent_id)
        return convert.usage_series_to_pb(starts, end, sums)

    async def _check_project(self, project_id: str) -> None:
        """Checks that the caller may see the usage of a project."""
        caller = require_caller()
        if project_id != caller.project_id:
            await self._store.get_project(Authority.of(caller), project_id)

    async def ListProjectUsage(
        self, request: pb.ListProjectUsageRequest, context: Any
    ) -> pb.ListProjectUsageResponse:
        """Lists the usage of the organization's projects, by id of the project."""
        now = self._clock.now()
        start, end = convert.usage_range(request, now - _USAGE_RANGE, now)
        limit, after = _limit_and_start("project_usage", request)
        rows = await self._store.list_projects(
            require_caller().organization_id, after=after, limit=limit + 1
        )
        page = Page.cut(rows, limit, "project_usage", lambda project: (project.id,))
        ids = [project.id for project in page.rows]
        sums = await self._runs.usage(ids, start, end)
        return pb.ListProjectUsageResponse(
            projects=[
                pb.ProjectUsage(
                    project=convert.project_to_pb(project),
                    usage=convert.usage_sum_to_pb(sums.get(project.id, UsageSum())),
                )
                for project in page.rows
            ],
            next_page_token=page.next_page_token,
        )


def _project_of_usage(request: pb.GetUsageRequest | pb.GetUsageSeriesRequest) -> str:
    """Returns the project that a request for usage is about."""
    if request.agent_id:
        check_id(request.agent_id, "agent", field="agent_id")
    return convert.project_of(request.project_id, require_caller().project_id)


def _organization(organization_id: str) -> str:
    """Returns the organization that a request names, by default the one of the caller's key.

    Raises:
        InvalidArgumentError: A malformed id.
        PermissionDeniedError: It is not the caller's, and the key lacks the scope
            ``installation.admin`` (``SCOPE_MISSING``).
    """
    caller_organization = require_caller().organization_id
    if not organization_id or organization_id == caller_organization:
        return caller_organization
    check_id(organization_id, "organization", field="organization_id")
    require_scope(OrganizationScope.INSTALLATION)
    return organization_id


def _limit_and_start(scope: str, request: Any) -> tuple[int, str | None]:
    """Returns the number of rows of a page, and the id after which it starts."""
    limit = page_limit(request.page_size, maximum=500)
    key = decode_page_token(scope, request.page_token, (str,))
    return limit, str(key[0]) if key else None
