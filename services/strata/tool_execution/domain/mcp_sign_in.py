"""Sign-in to MCP servers with OAuth: pending sign-ins, tokens, and the store of both."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from strata.protocol.errors import FailedPreconditionError, Reason
from strata.tool_execution.domain.mcp import CompletedSignIn

LIFETIME = timedelta(minutes=10)
"""How long a pending sign-in can be completed."""
MAX_PENDING = 20
"""Maximum number of pending sign-ins of a server."""


@dataclass(frozen=True, slots=True)
class RegisteredClient:
    """Strata's client registration at an authorization server.

    Attributes:
        id: The client id.
        secret: The client secret; empty for a public client.
        method: Client authentication: ``none``, ``client_secret_basic``, ``client_secret_post``.
    """

    id: str
    secret: str = ""
    method: str = "none"


@dataclass(frozen=True, slots=True)
class PendingSignIn:
    """A sign-in that was started and is not completed.

    Attributes:
        server_url: URL of the MCP server when the sign-in was started.
        issuer: The authorization server.
        token_endpoint: Its token endpoint, from its metadata.
        iss_required: Whether its authorization responses contain ``iss`` (RFC 9207).
        client: The client registration there.
        redirect_uri: Where the browser is redirected after the sign-in.
        verifier: PKCE code verifier (RFC 7636).
        resource: The resource that the tokens are for (RFC 8707).
        scope: The requested scopes.
    """

    server_url: str
    issuer: str
    token_endpoint: str
    iss_required: bool
    client: RegisteredClient
    redirect_uri: str
    verifier: str
    resource: str
    scope: str


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a completed sign-in.

    Attributes:
        access: The access token.
        server_url: URL of the MCP server at the sign-in.
        issuer: The authorization server.
        token_endpoint: Its token endpoint.
        client: The client registration there.
        resource: The resource that the tokens are for (RFC 8707).
        scope: The granted scopes.
        refresh: The refresh token; empty if there is none.
        expire_time: When the access token expires, in Unix seconds; None if unknown.
    """

    access: str
    server_url: str
    issuer: str
    token_endpoint: str
    client: RegisteredClient
    resource: str
    scope: str = ""
    refresh: str = ""
    expire_time: float | None = None


@dataclass(frozen=True, slots=True)
class SealedTokens:
    """Stored tokens.

    Attributes:
        sealed: `Tokens`, encrypted.
        version: Changes with every write.
        problem: Why a new sign-in is needed, or empty.
    """

    sealed: bytes
    version: int
    problem: str = ""


class Renewal(Protocol):
    """The locked tokens of a server during a refresh."""

    current: SealedTokens

    async def put(self, sealed: bytes) -> SealedTokens:
        """Stores refreshed tokens."""
        ...

    async def require_sign_in(self, problem: str) -> None:
        """Records why a new sign-in is needed."""
        ...


class SignInStore(Protocol):
    """Sign-ins of the current project; each method is one transaction."""

    async def begin(
        self, server_id: str, state_hash: str, sealed: bytes, expire_time: datetime
    ) -> None:
        """Stores a pending sign-in.

        Args:
            server_id: The MCP server.
            state_hash: Hash of the OAuth ``state``, by which the sign-in is looked up.
            sealed: `PendingSignIn`, encrypted.
            expire_time: Until when it can be completed.

        Raises:
            NotFoundError: The server does not exist (``MCP_SERVER_NOT_FOUND``).
            ResourceExhaustedError: The server has too many pending sign-ins
                (``QUOTA_EXCEEDED``).
        """
        ...

    async def take(self, server_id: str, state_hash: str) -> bytes | None:
        """Removes and returns a pending sign-in; None if it does not exist or has expired."""
        ...

    async def put(self, server_id: str, sealed: bytes, sign_in: CompletedSignIn) -> None:
        """Stores the tokens of a sign-in; they replace earlier ones.

        Raises:
            NotFoundError: The server does not exist (``MCP_SERVER_NOT_FOUND``).
        """
        ...

    async def get(self, server_id: str) -> SealedTokens | None:
        """Returns the tokens of a server; None if there are none."""
        ...

    async def forget(self, server_id: str) -> None:
        """Deletes the tokens and the pending sign-ins of a server."""
        ...

    def renewing(self, server_id: str) -> AbstractAsyncContextManager[Renewal | None]:
        """Locks the tokens of a server for a refresh; None if there are none.

        Changes are committed when the context ends.
        """
        ...


def sign_in_failed(server_id: str, words: str) -> FailedPreconditionError:
    """Returns the error for a sign-in that failed."""
    return FailedPreconditionError(
        words, reason=Reason.MCP_SIGN_IN_FAILED, metadata={"mcp_server_id": server_id}
    )
