"""Scopes of API keys: what project keys and organization keys may do.

A project key reaches the data of one project; an organization key reaches the projects and keys of
one organization. Their scopes have different names, so a method that requires a scope of one kind
refuses keys of the other kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Scope(StrEnum):
    """The permissions of a project key in its project."""

    READ = "read"
    WRITE = "write"
    RUN = "run"
    APPROVE = "approve"
    SECRETS = "secrets"
    ADMIN = "admin"


class OrganizationScope(StrEnum):
    """The permissions of an organization key.

    Attributes:
        READ: List projects, keys and usage of the organization.
        ADMIN: Create projects, and create and revoke keys, of the organization.
        INSTALLATION: Create organizations and their keys, and rebuild the indexes, which all
            projects share.
    """

    READ = "organization.read"
    ADMIN = "organization.admin"
    INSTALLATION = "installation.admin"


DEFAULT_SCOPES = frozenset({Scope.READ, Scope.WRITE, Scope.RUN})
"""Scopes of a project key that is created without naming any."""

DEFAULT_ORGANIZATION_SCOPES = frozenset({OrganizationScope.READ})
"""Scopes of an organization key that is created without naming any."""

_INCLUDED = {
    Scope.ADMIN: frozenset({Scope.SECRETS}),
    OrganizationScope.ADMIN: frozenset({OrganizationScope.READ}),
}


def with_included(scopes: Iterable[str]) -> frozenset[str]:
    """Returns the scopes together with the scopes that they imply."""
    stored = frozenset(scopes)
    return stored.union(*(more for scope, more in _INCLUDED.items() if scope in stored))
