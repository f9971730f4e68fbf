"""Validates and converts requests and responses for organizations, projects and keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TypeAlias

from strata.api.gateway.v1 import admin_service_pb2 as pb
from strata.gateway.auth.domain import ApiKey, NewKey, Organization, Project
from strata.gateway.runs.domain.runs import UsageSum
from strata.protocol.errors import FieldViolation
from strata.shared.blank_text import BLANK, is_blank
from strata.shared.checks import Checks
from strata.shared.ids import check_id
from strata.shared.names import name_problems
from strata.shared.scopes import (
    DEFAULT_ORGANIZATION_SCOPES,
    DEFAULT_SCOPES,
    OrganizationScope,
    Scope,
)
from strata.shared.time_buckets import bucket_count, bucket_starts

MAX_BUCKETS = 1_000
"""Maximum number of buckets of one series of usage."""

UsageRequest: TypeAlias = pb.GetUsageRequest | pb.GetUsageSeriesRequest | pb.ListProjectUsageRequest
"""A request with a time range."""

_MAX_NAME = 128
_DEFAULT_BUCKET_SECONDS = 86_400
_MIN_BUCKET_SECONDS, _MAX_BUCKET_SECONDS = 60, 366 * 86_400


def new_organization(request: pb.CreateOrganizationRequest) -> tuple[str, str | None]:
    """Returns name and request id of the organization to create.

    Raises:
        InvalidArgumentError: Fields are wrong; the violations name all of them.
    """
    checks = _checked_name(request)
    checks.done()
    return request.name, request.request_id or None


def new_project(
    request: pb.CreateProjectRequest, partitions: Sequence[str]
) -> tuple[str, str | None]:
    """Returns name and request id of the project to create.

    Args:
        request: The request.
        partitions: The partitions on which it may be placed.

    Raises:
        InvalidArgumentError: Fields are wrong; the violations name all of them.
    """
    checks = _checked_name(request)
    if request.partition:
        rule = f"must be empty or one of {', '.join(partitions)}"
        checks.unless(request.partition in partitions, "partition", rule)
    checks.done()
    return request.name, request.request_id or None


def _checked_name(request: pb.CreateProjectRequest | pb.CreateOrganizationRequest) -> Checks:
    checks = Checks()
    checks.extend(name_violations(request.name))
    checks.request_id(request.request_id)
    return checks


def new_key(request: pb.CreateApiKeyRequest, now: datetime) -> NewKey:
    """Returns the project key to create.

    Raises:
        InvalidArgumentError: Fields are wrong; the violations name all of them.
    """
    return _new_key(request, now, Scope, DEFAULT_SCOPES)


def new_organization_key(request: pb.CreateOrganizationKeyRequest, now: datetime) -> NewKey:
    """Returns the organization key to create.

    Raises:
        InvalidArgumentError: Fields are wrong; the violations name all of them.
    """
    return _new_key(request, now, OrganizationScope, DEFAULT_ORGANIZATION_SCOPES)


def _new_key(
    request: pb.CreateApiKeyRequest | pb.CreateOrganizationKeyRequest,
    now: datetime,
    scopes: Iterable[str],
    default: frozenset[str],
) -> NewKey:
    known_scopes = list(scopes)
    checks = Checks()
    checks.extend(name_violations(request.name))
    for index, scope in enumerate(request.scopes):
        checks.unless(
            scope in known_scopes, f"scopes[{index}]", f"must be one of {', '.join(known_scopes)}"
        )
    expire_time = checks.optional_time(request, "expire_time")
    if expire_time is not None:
        checks.unless(expire_time > now, "expire_time", "must be in the future")
    checks.done()
    return NewKey(request.name, frozenset(request.scopes) or default, expire_time)


def project_of(project_id: str, key_project_id: str) -> str:
    """Returns the project that a request names, by default the project of the caller's key.

    Args:
        project_id: The id in the request; may be empty.
        key_project_id: The project of the caller's key; empty for an organization key.

    Raises:
        InvalidArgumentError: A malformed id, or none from a caller that has no project.
    """
    if project_id or not key_project_id:
        return check_id(project_id, "project", field="project_id")
    return key_project_id


def usage_range(request: UsageRequest, start: datetime, end: datetime) -> tuple[datetime, datetime]:
    """Returns the time range of a request, with defaults for a missing start or end.

    Raises:
        InvalidArgumentError: A malformed time, or an end before the start.
    """
    checks = Checks()
    start, end = _usage_range(checks, request, start, end)
    checks.done()
    return start, end


def usage_buckets(
    request: pb.GetUsageSeriesRequest, start: datetime, end: datetime
) -> tuple[list[datetime], datetime]:
    """Returns the starts of the buckets of a request and the end of the last one.

    Args:
        request: The request.
        start: Start of the range if the request has none.
        end: End of the range if the request has none.

    Raises:
        InvalidArgumentError: A malformed time, an end before the start, or too many buckets.
    """
    checks = Checks()
    start, end = _usage_range(checks, request, start, end)
    seconds = request.bucket_seconds or _DEFAULT_BUCKET_SECONDS
    checks.number(seconds, "bucket_seconds", least=_MIN_BUCKET_SECONDS, most=_MAX_BUCKET_SECONDS)
    checks.done()
    length = timedelta(seconds=seconds)
    count = bucket_count(start, end, length)
    if count > MAX_BUCKETS:
        problem = (
            f"gives {count:,} buckets in this range, at most {MAX_BUCKETS:,}:"
            " choose longer buckets, or a shorter range"
        )
        checks.fail("bucket_seconds", problem)
        checks.done()
    return bucket_starts(start, end, length), end


def _usage_range(
    checks: Checks, request: UsageRequest, start: datetime, end: datetime
) -> tuple[datetime, datetime]:
    start = checks.optional_time(request, "start_time") or start
    end = checks.optional_time(request, "end_time") or end
    checks.unless(start <= end, "end_time", "must not be before start_time")
    return start, end


def organization_to_pb(organization: Organization) -> pb.Organization:
    """Converts an organization."""
    out = pb.Organization(id=organization.id, name=organization.name)
    out.create_time.FromDatetime(organization.create_time)
    return out


def project_to_pb(project: Project) -> pb.Project:
    """Converts a project."""
    out = pb.Project(
        id=project.id,
        organization_id=project.organization_id,
        name=project.name,
        partition=project.partition,
    )
    out.create_time.FromDatetime(project.create_time)
    return out


def key_to_pb(key: ApiKey) -> pb.ApiKey:
    """Converts a key, without its secret."""
    out = pb.ApiKey(
        id=key.id,
        organization_id=key.organization_id,
        project_id=key.project_id,
        name=key.name,
        scopes=sorted(key.scopes),
    )
    out.create_time.FromDatetime(key.create_time)
    if key.revoke_time is not None:
        out.revoke_time.FromDatetime(key.revoke_time)
    if key.expire_time is not None:
        out.expire_time.FromDatetime(key.expire_time)
    return out


def usage_sum_to_pb(total: UsageSum) -> pb.GetUsageResponse:
    """Converts a sum of usage."""
    return pb.GetUsageResponse(
        run_count=total.run_count,
        step_count=total.step_count,
        prompt_tokens=total.usage.prompt_tokens,
        completion_tokens=total.usage.completion_tokens,
        cached_input_tokens=total.usage.cached_input_tokens,
    )


def usage_series_to_pb(
    starts: Sequence[datetime], end: datetime, sums: Sequence[UsageSum]
) -> pb.GetUsageSeriesResponse:
    """Converts the usage of buckets.

    Args:
        starts: Their starts, in order.
        end: End of the last one.
        sums: The usage of each.
    """
    out = pb.GetUsageSeriesResponse(total=usage_sum_to_pb(sum(sums, UsageSum())))
    for (start, next_start), usage in zip(pairwise((*starts, end)), sums, strict=True):
        bucket = out.buckets.add(usage=usage_sum_to_pb(usage))
        bucket.start_time.FromDatetime(start)
        bucket.end_time.FromDatetime(next_start)
    return out


def name_violations(name: str) -> list[FieldViolation]:
    """Returns the violations of a name of an organization, a project or a key."""
    problems = name_problems(name, most=_MAX_NAME)
    if is_blank(name) and not problems:
        problems = [BLANK]
    return [FieldViolation("name", problem) for problem in problems]
