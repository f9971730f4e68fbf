"""What an API key may do: the scopes of the two kinds of keys.

A project key reaches the data of one project, an organisation key the projects and keys of one
organisation. The names of the scopes of the two kinds differ, so a method that asks for a scope
of one kind is closed to keys of the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Scope(StrEnum):
    """What a project key may do in its project."""

    READ = "read"
    WRITE = "write"
    RUN = "run"
    APPROVE = "approve"
    SECRETS = "secrets"
    ADMIN = "admin"


class OrganizationScope(StrEnum):
    """What an organisation key may do.

    Attributes:
        READ: List projects, keys and usage of the organisation.
        ADMIN: Create projects, and create and revoke keys, of the organisation.
        INSTALLATION: Create organisations and their keys, and rebuild the indexes, which are
            those of all projects.
    """

    READ = "organization.read"
    ADMIN = "organization.admin"
    INSTALLATION = "installation.admin"


DEFAULT_SCOPES = frozenset({Scope.READ, Scope.WRITE, Scope.RUN})
"""Those of a project key for which none are named."""

DEFAULT_ORGANIZATION_SCOPES = frozenset({OrganizationScope.READ})
"""Those of an organisation key for which none are named."""

_INCLUDED = {
    Scope.ADMIN: frozenset({Scope.SECRETS}),
    OrganizationScope.ADMIN: frozenset({OrganizationScope.READ}),
}


def with_included(scopes: Iterable[str]) -> frozenset[str]:
    """Returns the scopes and those that they include."""
    stored = frozenset(scopes)
    return stored.union(*(more for scope, more in _INCLUDED.items() if scope in stored))
