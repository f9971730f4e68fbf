"""API keys: their format and hashing, and the interfaces of their stores."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, Self

from strata.protocol.errors import PermissionDeniedError
from strata.shared.context import Caller
from strata.shared.ids import new_id
from strata.shared.partitions import DEFAULT_PARTITION
from strata.shared.scopes import with_included

_PREFIX = "sk-strata-"
_SECRET_BYTES = 32
# The key's id without its hyphens, a dot, and 32 random bytes in base64url.
_KEY = re.compile(r"sk-strata-([0-9a-f]{32})\.([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key without its secret; `project_id` of an organization key is empty."""

    project_id: str
    id: str
    organization_id: str
    name: str
    scopes: frozenset[str]
    create_time: datetime
    revoke_time: datetime | None
    expire_time: datetime | None


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """The data for verifying a key, which is read before the tenant is known.

    Attributes:
        project_id: Empty for an organization key.
        scopes: The stored scopes.
        partition: The partition of the project.
    """

    project_id: str
    id: str
    organization_id: str
    scopes: frozenset[str]
    secret_hash: bytes = field(repr=False)
    revoked: bool
    expire_time: datetime | None
    partition: str = DEFAULT_PARTITION

    def valid(self, digest: bytes, now: datetime) -> bool:
        """Returns whether the key is valid now and has this hash, in constant time."""
        same = hmac.compare_digest(self.secret_hash, digest)
        expired = self.expire_time is not None and self.expire_time <= now
        return same and not self.revoked and not expired


@dataclass(frozen=True, slots=True)
class Organization:
    """An organization."""

    id: str
    name: str
    create_time: datetime


@dataclass(frozen=True, slots=True)
class Authority:
    """The projects that an administrator may access: one, or all of an organization.

    Attributes:
        organization_id: The organization.
        project_id: The project; empty for all projects of the organization.
    """

    organization_id: str
    project_id: str = ""

    @classmethod
    def of(cls, caller: Caller) -> Self:
        """Returns what a key may administer; a project key administers its project only."""
        return cls(caller.organization_id, caller.project_id)


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key to create."""

    name: str
    scopes: frozenset[str]
    expire_time: datetime | None = None


def check_granted(caller: Caller, scopes: Iterable[str]) -> None:
    """Checks that the caller's key has all scopes that a new key would get.

    Raises:
        PermissionDeniedError: The key lacks scopes, which the message names (``SCOPE_MISSING``).
    """
    missing = sorted(frozenset(scopes) - with_included(caller.scopes))
    if missing:
        names = ", ".join(missing)
        raise PermissionDeniedError(
            f"A key can only be given scopes that your key has, and yours lacks {names}. Name"
            " other scopes, or use an organization key with the scope organization.admin.",
            metadata={"scope": missing[0]},
        )


@dataclass(frozen=True, slots=True)
class Project:
    """A project.

    Attributes:
        partition: Where its data is; never changes.
    """

    id: str
    organization_id: str
    name: str
    create_time: datetime
    partition: str


@dataclass(frozen=True, slots=True)
class NewSecret:
    """A new secret, which is shown once and stored as a hash."""

    key_id: str
    text: str = field(repr=False)


def new_secret() -> NewSecret:
    """Returns a new key: its id and its whole text."""
    key_id = new_id("key")
    random = base64.urlsafe_b64encode(secrets.token_bytes(_SECRET_BYTES)).rstrip(b"=").decode()
    return NewSecret(key_id, f"{_PREFIX}{key_id.removeprefix('key-').replace('-', '')}.{random}")


def key_id_of(text: str) -> str | None:
    """Returns the key id in a secret; None if the text does not have the format of a key."""
    match = _KEY.fullmatch(text)
    if match is None:
        return None
    digits = match.group(1)
    return f"key-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


class Hasher:
    """Hashes secrets with a pepper that is not in the database.

    It uses HMAC-SHA256 instead of a slow hash: secrets are 32 random bytes, which cannot be
    guessed at any speed, and a slow check before authentication would invite denial of service.

    Args:
        pepper: At least 16 characters.

    Raises:
        ValueError: The pepper is too short.
    """

    def __init__(self, pepper: str) -> None:
        if len(pepper) < 16:
            raise ValueError("the pepper of the API keys needs at least 16 characters")
        self._pepper = pepper.encode()

    def digest(self, text: str) -> bytes:
        """Returns the hash of a key's whole text."""
        return hmac.digest(self._pepper, text.encode(), hashlib.sha256)


class KeyLookup(Protocol):
    """Look-up of a key's record before its tenant is known."""

    async def find(self, key_id: str) -> KeyRecord | None:
        """Returns the record of a key; None if there is none."""
        ...


class AdminStore(Protocol):
    """Store of organizations, projects and keys.

    What an authority cannot access counts as missing.
    """

    async def create_organization(self, name: str, request_id: str | None) -> Organization:
        """Creates an organization; the same request_id gives the same organization.

        Raises:
            AlreadyExistsError: The name is taken, or the request_id was used for another.
        """
        ...

    async def list_organizations(self, *, after: str | None, limit: int) -> Sequence[Organization]:
        """Returns organizations by id, those after the id `after` if there is one."""
        ...

    async def create_organization_key(
        self, organization_id: str, new: NewKey
    ) -> tuple[ApiKey, str]:
        """Creates an organization key and returns it with its secret.

        Raises:
            NotFoundError: There is no such organization (``ORGANIZATION_NOT_FOUND``).
        """
        ...

    async def list_organization_keys(
        self, organization_id: str, *, after: str | None, limit: int
    ) -> Sequence[ApiKey]:
        """Returns the keys of an organization by id.

        Raises:
            NotFoundError: There is no such organization (``ORGANIZATION_NOT_FOUND``).
        """
        ...

    async def revoke_organization_key(self, organization_id: str, key_id: str) -> ApiKey:
        """Revokes an organization key; a revoked key keeps its revocation time.

        Raises:
            NotFoundError: There is no such organization (``ORGANIZATION_NOT_FOUND``), or it has
                no such key (``API_KEY_NOT_FOUND``).
        """
        ...

    async def create_project(
        self, organization_id: str, name: str, request_id: str | None, partition: str = ""
    ) -> Project:
        """Creates a project; the same request_id gives the same project.

        Args:
            organization_id: Its organization.
            name: Its name.
            request_id: Identifies the request; None for none.
            partition: Where to place it; empty for the partition with the fewest projects.

        Raises:
            AlreadyExistsError: The name is taken, or the request_id was used for another.
        """
        ...

    async def list_projects(
        self, organization_id: str, *, after: str | None, limit: int
    ) -> Sequence[Project]:
        """Returns projects by id, those after the id `after` if there is one."""
        ...

    async def get_project(self, authority: Authority, project_id: str) -> Project:
        """Returns a project.

        Raises:
            NotFoundError: The authority includes no such project (``PROJECT_NOT_FOUND``).
        """
        ...

    async def create_key(
        self, authority: Authority, project_id: str, new: NewKey
    ) -> tuple[ApiKey, str]:
        """Creates a key and returns it with its secret.

        Raises:
            NotFoundError: The authority includes no such project (``PROJECT_NOT_FOUND``).
        """
        ...

    async def list_keys(
        self, authority: Authority, project_id: str, *, after: str | None, limit: int
    ) -> Sequence[ApiKey]:
        """Returns the keys of a project by id.

        Raises:
            NotFoundError: The authority includes no such project (``PROJECT_NOT_FOUND``).
        """
        ...

    async def revoke_key(self, authority: Authority, key_id: str) -> ApiKey:
        """Revokes a key; a revoked key keeps its revocation time.

        Raises:
            NotFoundError: The authority includes no such key (``API_KEY_NOT_FOUND``).
        """
        ...

    async def describe(self, authority: Authority, key_id: str) -> tuple[Project | None, ApiKey]:
        """Returns a key, and its project unless it is an organization key.

        Raises:
            NotFoundError: The key or its project was deleted.
        """
        ...
