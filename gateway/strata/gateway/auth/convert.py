"""Validates and converts requests and responses for organisations, projects and keys."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from strata.api.gateway.v1 import admin_service_pb2 as pb
from strata.gateway.auth.domain import ApiKey, NewKey, Organization, Project
from strata.gateway.runs.domain import UsageSum
from strata.protocol.errors import FieldViolation, InvalidArgumentError
from strata.shared.blank_text import BLANK, is_blank
from strata.shared.ids import check_id
from strata.shared.names import name_problems
from strata.shared.scopes import (
    DEFAULT_ORGANIZATION_SCOPES,
    DEFAULT_SCOPES,
    OrganizationScope,
    Scope,
)

_MAX_NAME = 128
_REQUEST_ID = re.compile(r"[!-~]{1,128}")


def new_name(
    request: pb.CreateProjectRequest | pb.CreateOrganizationRequest,
) -> tuple[str, str | None]:
    """Returns name and request id of the project or organisation to create.

    Raises:
        InvalidArgumentError: Naming every wrong field.
    """
    violations = name_violations(request.name)
    if request.request_id and _REQUEST_ID.fullmatch(request.request_id) is None:
        violations.append(
            FieldViolation("request_id", "must be at most 128 printable ASCII characters")
        )
    _refuse(violations)
    return request.name, request.request_id or None


def new_key(request: pb.CreateApiKeyRequest, now: datetime) -> NewKey:
    """Returns the project key to create.

    Raises:
        InvalidArgumentError: Naming every wrong field.
    """
    return _new_key(request, now, Scope, DEFAULT_SCOPES)


def new_organization_key(request: pb.CreateOrganizationKeyRequest, now: datetime) -> NewKey:
    """Returns the organisation key to create.

    Raises:
        InvalidArgumentError: Naming every wrong field.
    """
    return _new_key(request, now, OrganizationScope, DEFAULT_ORGANIZATION_SCOPES)


def _new_key(
    request: pb.CreateApiKeyRequest | pb.CreateOrganizationKeyRequest,
    now: datetime,
    kinds: Iterable[str],
    default: frozenset[str],
) -> NewKey:
    known = list(kinds)
    violations = name_violations(request.name)
    violations += [
        FieldViolation(f"scopes[{index}]", f"must be one of {', '.join(known)}")
        for index, scope in enumerate(request.scopes)
        if scope not in known
    ]
    expire_time = None
    if request.HasField("expire_time"):
        try:
            expire_time = _time(request.expire_time, "expire_time")
            if expire_time <= now:
                violations.append(FieldViolation("expire_time", "must lie in the future"))
        except InvalidArgumentError as error:
            violations += error.violations
    _refuse(violations)
    return NewKey(request.name, frozenset(request.scopes) or default, expire_time)


def project_of(project_id: str, own: str) -> str:
    """Returns the project of a request, or else that of the caller's key.

    Args:
        project_id: The id in the request; may be empty.
        own: The project of the caller's key; empty for an organisation key.

    Raises:
        InvalidArgumentError: A malformed id, or none from a caller that has no project.
    """
    if project_id or not own:
        return check_id(project_id, "project", field="project_id")
    return own


def usage_range(
    request: pb.GetUsageRequest | pb.ListProjectUsageRequest, start: datetime, end: datetime
) -> tuple[datetime, datetime]:
    """Returns the time range of a request, with defaults for a missing start or end.

    Raises:
        InvalidArgumentError: A malformed time, or an end before the start.
    """
    if request.HasField("start_time"):
        start = _time(request.start_time, "start_time")
    if request.HasField("end_time"):
        end = _time(request.end_time, "end_time")
    if end < start:
        _refuse([FieldViolation("end_time", "must not lie before start_time")])
    return start, end


def organization_to_pb(organization: Organization) -> pb.Organization:
    """Converts an organisation."""
    out = pb.Organization(id=organization.id, name=organization.name)
    out.create_time.FromDatetime(organization.create_time)
    return out


def project_to_pb(project: Project) -> pb.Project:
    """Converts a project."""
    out = pb.Project(id=project.id, organization_id=project.organization_id, name=project.name)
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


def name_violations(name: str) -> list[FieldViolation]:
    """Returns the violations of a name of an organisation, a project or a key."""
    problems = name_problems(name, most=_MAX_NAME)
    if is_blank(name) and not problems:
        problems = [BLANK]
    return [FieldViolation("name", problem) for problem in problems]


def _time(value: Timestamp, field: str) -> datetime:
    try:
        return value.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise InvalidArgumentError(
            f"{field} is not a valid time.",
            violations=[FieldViolation(field, "is not a valid time")],
        ) from None


def _refuse(violations: list[FieldViolation]) -> None:
    if violations:
        first = violations[0]
        raise InvalidArgumentError(f"{first.field} {first.description}.", violations=violations)
