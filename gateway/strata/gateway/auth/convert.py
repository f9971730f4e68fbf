"""Projects and keys between the wire and the domain; requests are checked here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from strata.api.gateway.v1 import admin_service_pb2 as pb
from strata.gateway.auth.domain import DEFAULT_SCOPES, ApiKey, Project, Scope
from strata.gateway.runs.domain import UsageSum
from strata.shared.errors import FieldViolation, InvalidArgumentError
from strata.shared.ids import check_id

_MAX_NAME = 128
_REQUEST_ID = re.compile(r"[!-~]{1,128}")


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that is asked for."""

    project_id: str
    name: str
    scopes: frozenset[str]
    expire_time: datetime | None


def new_project(request: pb.CreateProjectRequest) -> tuple[str, str | None]:
    """Returns name and request id of the project that is asked for.

    Raises:
        InvalidArgumentError: Naming every wrong field.
    """
    violations = _name_violations(request.name)
    if request.request_id and _REQUEST_ID.fullmatch(request.request_id) is None:
        violations.append(
            FieldViolation("request_id", "must be at most 128 printable ASCII characters")
        )
    _refuse(violations)
    return request.name, request.request_id or None


def new_key(request: pb.CreateApiKeyRequest, now: datetime) -> NewKey:
    """Returns the key that is asked for.

    Raises:
        InvalidArgumentError: Naming every wrong field.
    """
    if request.project_id:
        check_id(request.project_id, "project", field="project_id")
    violations = _name_violations(request.name)
    violations += [
        FieldViolation(f"scopes[{index}]", f"must be one of {', '.join(Scope)}")
        for index, scope in enumerate(request.scopes)
        if scope not in frozenset(Scope)
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
    return NewKey(
        request.project_id,
        request.name,
        frozenset(request.scopes) or DEFAULT_SCOPES,
        expire_time,
    )


def usage_range(
    request: pb.GetUsageRequest, start: datetime, end: datetime
) -> tuple[datetime, datetime]:
    """Returns the range asked for, or the given one where the request is silent.

    Raises:
        InvalidArgumentError: A malformed id, or an end before the start.
    """
    if request.agent_id:
        check_id(request.agent_id, "agent", field="agent_id")
    if request.HasField("start_time"):
        start = _time(request.start_time, "start_time")
    if request.HasField("end_time"):
        end = _time(request.end_time, "end_time")
    if end < start:
        _refuse([FieldViolation("end_time", "must not lie before start_time")])
    return start, end


def project_to_pb(project: Project) -> pb.Project:
    """Returns a project as the wire has it."""
    out = pb.Project(id=project.id, organization_id=project.organization_id, name=project.name)
    out.create_time.FromDatetime(project.create_time)
    return out


def key_to_pb(key: ApiKey) -> pb.ApiKey:
    """Returns a key as the wire has it; it holds no secret."""
    out = pb.ApiKey(id=key.id, project_id=key.project_id, name=key.name, scopes=sorted(key.scopes))
    out.create_time.FromDatetime(key.create_time)
    if key.revoke_time is not None:
        out.revoke_time.FromDatetime(key.revoke_time)
    if key.expire_time is not None:
        out.expire_time.FromDatetime(key.expire_time)
    return out


def usage_sum_to_pb(total: UsageSum) -> pb.GetUsageResponse:
    """Returns a sum as the wire has it."""
    return pb.GetUsageResponse(
        run_count=total.run_count,
        step_count=total.step_count,
        prompt_tokens=total.usage.prompt_tokens,
        completion_tokens=total.usage.completion_tokens,
        cached_input_tokens=total.usage.cached_input_tokens,
    )


def _name_violations(name: str) -> list[FieldViolation]:
    if name.strip() and len(name) <= _MAX_NAME and name.isprintable():
        return []
    return [FieldViolation("name", f"must be 1 to {_MAX_NAME} printable characters")]


def _time(value: Timestamp, field: str) -> datetime:
    try:
        return value.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise InvalidArgumentError(
            f"{field} is no valid time.", violations=[FieldViolation(field, "is no valid time")]
        ) from None


def _refuse(violations: list[FieldViolation]) -> None:
    if violations:
        first = violations[0]
        raise InvalidArgumentError(f"{first.field} {first.description}.", violations=violations)
