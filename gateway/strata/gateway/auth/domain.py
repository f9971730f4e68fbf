"""API keys: their form, their scopes and what each method needs. Pure."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from strata.shared.ids import new_id

_PREFIX = "sk-strata-"
_SECRET_BYTES = 32
# The key's id without its hyphens, a dot, and 32 random bytes in base64url.
_KEY = re.compile(r"sk-strata-([0-9a-f]{32})\.([A-Za-z0-9_-]{43})")


class Scope(StrEnum):
    """What a key may do."""

    READ = "read"
    WRITE = "write"
    RUN = "run"
    APPROVE = "approve"
    ADMIN = "admin"


DEFAULT_SCOPES = frozenset({Scope.READ, Scope.WRITE, Scope.RUN})


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key without its secret."""

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
    """What is needed to check a key, reached before the tenant is known."""

    project_id: str
    id: str
    organization_id: str
    scopes: frozenset[str]
    secret_hash: bytes = field(repr=False)
    revoked: bool
    expire_time: datetime | None

    def valid(self, digest: bytes, now: datetime) -> bool:
        """Says whether a secret with this hash opens now; takes the same time either way."""
        same = hmac.compare_digest(self.secret_hash, digest)
        expired = self.expire_time is not None and self.expire_time <= now
        return same and not self.revoked and not expired


@dataclass(frozen=True, slots=True)
class Project:
    """A project."""

    id: str
    organization_id: str
    name: str
    create_time: datetime


@dataclass(frozen=True, slots=True)
class NewSecret:
    """A secret that was just made; shown once, kept as a hash."""

    key_id: str
    text: str = field(repr=False)


def new_secret() -> NewSecret:
    """Returns a new key: its id and its whole text."""
    key_id = new_id("key")
    random = base64.urlsafe_b64encode(secrets.token_bytes(_SECRET_BYTES)).rstrip(b"=").decode()
    return NewSecret(key_id, f"{_PREFIX}{key_id.removeprefix('key-').replace('-', '')}.{random}")


def key_id_of(text: str) -> str | None:
    """Returns the id of the key that a secret is for, None if it is not written like one."""
    match = _KEY.fullmatch(text)
    if match is None:
        return None
    digits = match.group(1)
    return f"key-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


class Hasher:
    """Hashes secrets with a pepper that the database does not hold.

    HMAC-SHA256, not a slow hash: the secrets are 32 random bytes, which nobody guesses
    at any speed, and a slow check at the door would be a lever against the server.

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
        """Returns what is stored for a key's whole text."""
        return hmac.digest(self._pepper, text.encode(), hashlib.sha256)


class KeyLookup(Protocol):
    """The way to a key's record before its tenant is known."""

    async def find(self, key_id: str) -> KeyRecord | None:
        """Returns the record of a key, None if there is none."""
        ...


class AdminStore(Protocol):
    """Projects and keys of an organisation; an administrator acts in his own only."""

    async def create_project(
        self, organization_id: str, name: str, request_id: str | None
    ) -> Project:
        """Creates a project; the same request_id gives the same project.

        Raises:
            AlreadyExistsError: The name is taken, or the request_id was used for another.
        """
        ...

    async def list_projects(
        self, organization_id: str, *, after: str | None, limit: int
    ) -> Sequence[Project]:
        """Returns projects by id, those after the id `after` if it is given."""
        ...

    async def create_key(
        self,
        organization_id: str,
        project_id: str,
        name: str,
        scopes: Iterable[str],
        expire_time: datetime | None,
    ) -> tuple[ApiKey, str]:
        """Creates a key and returns it with its secret.

        Raises:
            NotFoundError: The organisation has no such project (``PROJECT_NOT_FOUND``).
        """
        ...

    async def list_keys(
        self, organization_id: str, project_id: str, *, after: str | None, limit: int
    ) -> Sequence[ApiKey]:
        """Returns the keys of a project by id.

        Raises:
            NotFoundError: The organisation has no such project (``PROJECT_NOT_FOUND``).
        """
        ...

    async def revoke_key(self, organization_id: str, key_id: str) -> ApiKey:
        """Revokes a key; one that is revoked keeps its time.

        Raises:
            NotFoundError: The organisation has no such key (``API_KEY_NOT_FOUND``).
        """
        ...

    async def describe(
        self, organization_id: str, project_id: str, key_id: str
    ) -> tuple[Project, ApiKey]:
        """Returns a key and its project.

        Raises:
            NotFoundError: Either is gone.
        """
        ...
