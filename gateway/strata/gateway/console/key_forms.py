"""Forms for new keys: the scopes that a person may grant, and the fields of the form."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp

from strata.gateway.console.forms import FormFields
from strata.gateway.console.visits import Visit
from strata.protocol.errors import FieldViolation, InvalidArgumentError
from strata.shared.scopes import OrganizationScope, Scope

LIFETIMES = {
    "": "never",
    "7": "in 7 days",
    "30": "in 30 days",
    "90": "in 90 days",
    "365": "in a year",
}
"""Days until a new key expires, in words."""


def grantable_scopes(visit: Visit) -> list[str]:
    """Returns the scopes that the key of a person may give to another key of a project."""
    if visit.may(OrganizationScope.ADMIN):
        return list(Scope)
    return _held(visit, Scope) if visit.may(Scope.ADMIN) else []


def grantable_organization_scopes(visit: Visit) -> list[str]:
    """Returns the scopes that the key of a person may give to another organization key."""
    return _held(visit, OrganizationScope) if visit.may(OrganizationScope.ADMIN) else []


def _held(visit: Visit, scopes: Iterable[str]) -> list[str]:
    return [str(scope) for scope in scopes if visit.may(scope)]


def expiry_in(form: FormFields) -> Timestamp | None:
    """Returns when the key of a form expires; None for never.

    Raises:
        InvalidArgumentError: The form names another lifetime than the page offers.
    """
    days = form.text("lifetime")
    if days not in LIFETIMES:
        raise InvalidArgumentError(
            "The key cannot be created.",
            violations=[FieldViolation("lifetime", f"{days!r} is not one of the choices")],
        )
    if not days:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(datetime.now(UTC) + timedelta(days=int(days)))
    return stamp
