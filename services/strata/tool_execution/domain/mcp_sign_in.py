"""Signing in to MCP servers: what is kept between a person's steps, and between calls."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from strata.shared.errors import FailedPreconditionError, Reason
from strata.tool_execution.domain.mcp import SignIn

LIFETIME = timedelta(minutes=10)
"""How long a sign-in that was begun can be completed."""
MAX_BEGUN = 20
"""Sign-ins of a server that are begun and neither completed nor expired."""


@dataclass(frozen=True, slots=True)
class Client:
    """What we are known by to an authorization server.

    Attributes:
        secret: Of this client; empty if it has none.
        method: How it proves itself: ``none``, ``client_secret_basic``, ``client_secret_post``.
    """

    id: str
    secret: str = ""
    method: str = "none"


@dataclass(frozen=True, slots=True)
class Begun:
    """A sign-in under way.

    Attributes:
        server_url: The server's URL when it was begun.
        issuer: The authorization server.
        token_endpoint: Where it gives tokens, as its own metadata say.
        iss_required: Whether it says who it is when it sends the browser back (RFC 9207).
        client: What we are known by there.
        redirect_uri: Where the browser is sent back to.
        verifier: Proves that who completes it has begun it (PKCE, RFC 7636).
        resource: What the tokens are for (RFC 8707).
        scope: The scopes that are asked for.
    """

    server_url: str
    issuer: str
    token_endpoint: str
    iss_required: bool
    client: Client
    redirect_uri: str
    verifier: str
    resource: str
    scope: str


@dataclass(frozen=True, slots=True)
class Tokens:
    """What signing in has given.

    Attributes:
        access: Sent with requests to the server.
        refresh: Gets the next ones; empty if there is none.
        expire_time: When `access` ends, in seconds of Unix time; None if that is not known.
    """

    access: str
    server_url: str
    issuer: str
    token_endpoint: str
    client: Client
    resource: str
    scope: str = ""
    refresh: str = ""
    expire_time: float | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """Tokens as they are stored.

    Attributes:
        sealed: `Tokens`.
        version: Another one with every change.
        problem: Why somebody has to sign in again, or empty.
    """

    sealed: bytes
    version: int
    problem: str = ""


class Renewal(Protocol):
    """The tokens of a server, which nobody else changes meanwhile."""

    kept: Kept

    async def put(self, sealed: bytes) -> Kept:
        """Stores newer ones."""
        ...

    async def give_up(self, problem: str) -> None:
        """Notes that somebody has to sign in again."""
        ...


class SignInStore(Protocol):
    """Sign-ins of the current project; each method is one transaction."""

    async def begin(
        self, server_id: str, state_hash: str, sealed: bytes, expire_time: datetime
    ) -> None:
        """Keeps a sign-in under way.

        Raises:
            NotFoundError: MCP_SERVER_NOT_FOUND.
            ResourceExhaustedError: QUOTA_EXCEEDED; too many are.
        """
        ...

    async def take(self, server_id: str, state_hash: str) -> bytes | None:
        """Takes a sign-in out; None if it is not there, or too old."""
        ...

    async def put(self, server_id: str, sealed: bytes, sign_in: SignIn) -> None:
        """Stores tokens in the place of those that are there.

        Raises:
            NotFoundError: MCP_SERVER_NOT_FOUND.
        """
        ...

    async def get(self, server_id: str) -> Kept | None:
        """Returns the tokens of a server."""
        ...

    async def forget(self, server_id: str) -> None:
        """Deletes the tokens of a server, and what was begun."""
        ...

    def renewing(self, server_id: str) -> AbstractAsyncContextManager[Renewal | None]:
        """Locks the tokens of a server; None if there are none.

        What is put is stored when the context ends.
        """
        ...


def sign_in_failed(server_id: str, words: str) -> FailedPreconditionError:
    """Says why nobody could be signed in."""
    return FailedPreconditionError(
        words, reason=Reason.MCP_SIGN_IN_FAILED, metadata={"mcp_server_id": server_id}
    )
