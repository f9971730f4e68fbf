"""Sign-in of a person to an MCP server in two steps, and the tokens that calls use afterwards.

A call never waits for a person: without a valid token it fails immediately. All replicas share the
tokens of a server. A refresh locks their row, so that no refresh token is used twice, which some
authorization servers treat as theft.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Protocol

import httpx2

from strata.protocol.errors import DataLossError, FailedPreconditionError
from strata.shared.clock import Clock
from strata.shared.context import Caller, RequestContext, require_caller, use
from strata.tool_execution.custom.secrets import SecretBox
from strata.tool_execution.domain.mcp import CompletedSignIn, McpServer, McpStore, OAuthClient
from strata.tool_execution.domain.mcp_sign_in import (
    LIFETIME,
    PendingSignIn,
    RegisteredClient,
    SealedTokens,
    SignInStore,
    Tokens,
    sign_in_failed,
)
from strata.tool_execution.mcp.http import GuardedTransport, guarded_client

_FLOW = "strata.tool_execution.mcp.authorization"
# Time limit of one step with all its requests.
_STEP_S = 30.0
# Tokens are refreshed this long before they expire, since a request takes some time.
_EARLY_S = 30.0
NOT_SIGNED_IN = "nobody has signed in to it: sign in with `strata mcp login`"
SIGN_IN_AGAIN = "sign in to it again with `strata mcp login`"
REVOKED = "the authorization server has revoked the sign-in"
EXPIRED = "the token has expired, and the authorization server issued no refresh token"


class TransportFactory(Protocol):
    """Creates the HTTP transport for the requests of one step."""

    def __call__(self) -> GuardedTransport:
        """Returns a guarded transport."""
        ...


class NoTokenError(Exception):
    """No valid token exists; the message contains the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class SignInStep:
    """The first step of a sign-in: the URL for the person's browser.

    Attributes:
        url: URL to open in a browser.
        issuer: The authorization server.
        scope: The requested scopes.
        state: The OAuth ``state``, which the browser brings back.
        expire_time: Until when the sign-in can be completed.
    """

    url: str
    issuer: str
    scope: str
    state: str
    expire_time: datetime


class SignIns:
    """Sign-ins of the calling project.

    Args:
        servers: Its MCP servers.
        store: Its sign-ins.
        box: Encrypts and decrypts.
        transports: Creates HTTP transports.
        clock: Gives the time for expiry.
        connect_s: Seconds to connect, and to wait for a response.
    """

    def __init__(
        self,
        servers: McpStore,
        store: SignInStore,
        box: SecretBox,
        transports: TransportFactory,
        clock: Clock,
        connect_s: float,
    ) -> None:
        self._servers = servers
        self._store = store
        self._box = box
        self._transports = transports
        self._clock = clock
        self._connect_s = connect_s

    async def begin(self, server_id: str, redirect_uri: str) -> SignInStep:
        """Discovers the authorization server and starts a sign-in.

        Raises:
            NotFoundError: The server does not exist (``MCP_SERVER_NOT_FOUND``).
            FailedPreconditionError: The step failed (``MCP_SIGN_IN_FAILED``), or there is no master
                key.
            ResourceExhaustedError: The server has too many pending sign-ins.
        """
        server, oauth_client = await self._server(server_id)
        # Fails before any request is sent if there is no master key.
        self._box.seal(_pending_name(server_id), "")
        flow: Any = await asyncio.to_thread(importlib.import_module, _FLOW)
        async with self._client_for_step(server_id, flow) as http:
            authorization_server = await flow.discover(http, server.url, oauth_client)
            if oauth_client.client_id:
                client = await self._own_client(server, oauth_client)
            else:
                client = await flow.register(http, authorization_server, redirect_uri)
        verifier, challenge = flow.new_pkce_pair()
        pending = PendingSignIn(
            server_url=server.url,
            issuer=authorization_server.issuer,
            token_endpoint=str(authorization_server.metadata.token_endpoint),
            iss_required=bool(
                authorization_server.metadata.authorization_response_iss_parameter_supported
            ),
            client=client,
            redirect_uri=redirect_uri,
            verifier=verifier,
            resource=authorization_server.resource,
            scope=authorization_server.scope,
        )
        state = secrets.token_urlsafe(32)
        ends = self._clock.now() + LIFETIME
        sealed = self._box.seal(_pending_name(server_id), json.dumps(asdict(pending)))
        await self._store.begin(server_id, _hash(state), sealed, ends)
        url = flow.authorization_url(authorization_server, pending, state, challenge)
        return SignInStep(url, authorization_server.issuer, authorization_server.scope, state, ends)

    async def complete(self, server_id: str, state: str, code: str, issuer: str) -> None:
        """Completes a sign-in: exchanges the code that the browser brought back for tokens.

        Raises:
            NotFoundError: The server does not exist (``MCP_SERVER_NOT_FOUND``).
            FailedPreconditionError: The sign-in failed (``MCP_SIGN_IN_FAILED``).
        """
        server, _ = await self._server(server_id)
        sealed = await self._store.take(server_id, _hash(state))
        if sealed is None:
            raise sign_in_failed(
                server_id,
                "This sign-in does not exist: it was already completed, is older than ten minutes,"
                " or was started for another MCP server. Start it again.",
            )
        pending = _pending_sign_in(self._box.open(_pending_name(server_id), sealed))
        if pending.server_url != server.url:
            raise sign_in_failed(
                server_id, "The server's URL has changed. Start the sign-in again."
            )
        if issuer != pending.issuer and (issuer or pending.iss_required):
            raise sign_in_failed(
                server_id,
                "The browser came back from a different authorization server than the one it was"
                " sent to. The code was not used.",
            )
        flow: Any = await asyncio.to_thread(importlib.import_module, _FLOW)
        now = self._clock.now()
        async with self._client_for_step(server_id, flow) as http:
            tokens = await flow.exchange_code(http, pending, code, now.timestamp())
        signed = CompletedSignIn(require_caller().principal, now, pending.issuer)
        await self._store.put(server_id, self._sealed(server_id, tokens), signed)

    async def forget(self, server_id: str) -> None:
        """Deletes the tokens of a server.

        Raises:
            NotFoundError: The server does not exist (``MCP_SERVER_NOT_FOUND``).
        """
        await self._servers.get(server_id)
        await self._store.forget(server_id)

    async def token(self, server: McpServer, refused: str = "") -> Tokens:
        """Returns tokens for a request; refreshes them if needed.

        Args:
            server: The server.
            refused: A token that the server has just refused.

        Raises:
            NoTokenError: A person has to sign in, or the authorization server cannot be reached.
        """
        tokens = self._opened(server, await self._store.get(server.id))
        if not self._expired(tokens) and tokens.access != refused:
            return tokens
        if not tokens.refresh:
            raise NoTokenError(f"{EXPIRED}: {SIGN_IN_AGAIN}")
        flow: Any = await asyncio.to_thread(importlib.import_module, _FLOW)
        async with self._store.renewing(server.id) as renewal:
            # Another replica may have refreshed them meanwhile.
            tokens = self._opened(server, renewal.current if renewal is not None else None)
            if renewal is None or (not self._expired(tokens) and tokens.access != refused):
                return tokens
            try:
                async with self._http() as http, flow.translate_errors():
                    now = self._clock.now().timestamp()
                    newer = replace(tokens, **await flow.refresh_tokens(http, tokens, now))
            except flow.AuthorizationError as error:
                if not error.revoked:
                    raise NoTokenError(str(error)) from None
                await renewal.require_sign_in(REVOKED)
            else:
                await renewal.put(self._sealed(server.id, newer))
                return newer
        raise NoTokenError(f"{REVOKED}: {SIGN_IN_AGAIN}")

    def _opened(self, server: McpServer, sealed_tokens: SealedTokens | None) -> Tokens:
        if sealed_tokens is None:
            raise NoTokenError(NOT_SIGNED_IN)
        if sealed_tokens.problem:
            raise NoTokenError(f"{sealed_tokens.problem}: {SIGN_IN_AGAIN}")
        try:
            tokens = _tokens(self._box.open(_tokens_name(server.id), sealed_tokens.sealed))
        except (DataLossError, FailedPreconditionError) as error:
            raise NoTokenError(f"{error.message} {SIGN_IN_AGAIN}") from None
        if tokens.server_url != server.url:
            raise NoTokenError(f"its URL has changed since the sign-in: {SIGN_IN_AGAIN}")
        return tokens

    def _expired(self, tokens: Tokens) -> bool:
        now = self._clock.now().timestamp()
        return tokens.expire_time is not None and now >= tokens.expire_time - _EARLY_S

    def _sealed(self, server_id: str, tokens: Tokens) -> bytes:
        return self._box.seal(_tokens_name(server_id), json.dumps(asdict(tokens)))

    async def _server(self, server_id: str) -> tuple[McpServer, OAuthClient]:
        server = await self._servers.get(server_id)
        if server.oauth is None:
            raise sign_in_failed(
                server_id,
                f"The server {server.name} has no sign-in: set oauth in its configuration.",
            )
        return server, server.oauth

    async def _own_client(self, server: McpServer, client: OAuthClient) -> RegisteredClient:
        if not client.client_secret:
            return RegisteredClient(client.client_id)
        connectable = (await self._servers.connectable([server.id])).get(server.id)
        sealed = connectable.sealed.get(client.client_secret) if connectable is not None else None
        if sealed is None:
            raise sign_in_failed(server.id, f"The secret {client.client_secret} is not stored.")
        secret = self._box.open(client.client_secret, sealed)
        return RegisteredClient(client.client_id, secret, "client_secret_basic")

    @asynccontextmanager
    async def _client_for_step(
        self, server_id: str, flow: Any
    ) -> AsyncIterator[httpx2.AsyncClient]:
        try:
            async with asyncio.timeout(_STEP_S), self._http() as http, flow.translate_errors():
                yield http
        except flow.AuthorizationError as error:
            raise sign_in_failed(server_id, str(error)) from None
        except TimeoutError:
            message = f"The sign-in did not succeed within {_STEP_S:.0f} seconds."
            raise sign_in_failed(server_id, message) from None

    def _http(self) -> httpx2.AsyncClient:
        return guarded_client(self._transports(), {}, self._connect_s, self._connect_s)


class SignedInAuth(httpx2.Auth):
    """Adds the tokens of a person's sign-in to requests.

    A request is sent only with a token. Without one it fails like a request that could not be sent,
    and nothing is run.

    Args:
        server: The server.
        sign_ins: Provides the tokens.
        project_id: Project of the server; requests are sent by tasks without a caller's context.
        tokens: Receives the current tokens by kind, so that they can be redacted in responses.
        partition: The partition of the project.

    Attributes:
        failed: Whether no token could be obtained.
    """

    requires_response_body = False

    def __init__(
        self,
        server: McpServer,
        sign_ins: SignIns,
        project_id: str,
        tokens: MutableMapping[str, str],
        partition: str,
    ) -> None:
        self._server = server
        self._sign_ins = sign_ins
        self._tokens = tokens
        self._project = project_id
        self._partition = partition
        self._lock = asyncio.Lock()
        self.failed = False

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Yields a request with a token, and once more with a newer token if it is refused.

        Raises:
            httpx2.ConnectError: No token could be obtained.
        """
        token = await self._token(request)
        request.headers["Authorization"] = f"Bearer {token}"
        response = yield request
        if response.status_code == 401:
            token = await self._token(request, refused=token)
            request.headers["Authorization"] = f"Bearer {token}"
            yield request

    async def _token(self, request: httpx2.Request, refused: str = "") -> str:
        context = RequestContext(caller=Caller("", self._project, "mcp", partition=self._partition))
        try:
            # One refresh at a time, since each holds a database connection.
            async with self._lock:
                with use(context):
                    tokens = await self._sign_ins.token(self._server, refused)
        except NoTokenError as error:
            self.failed = True
            raise httpx2.ConnectError(f"signing in failed: {error}", request=request) from None
        self.failed = False
        self._tokens.clear()
        self._tokens["access token"] = tokens.access
        if tokens.refresh:
            self._tokens["refresh token"] = tokens.refresh
        return tokens.access


def _pending_sign_in(text: str) -> PendingSignIn:
    fields = json.loads(text)
    return PendingSignIn(**{**fields, "client": RegisteredClient(**fields["client"])})


def _tokens(text: str) -> Tokens:
    fields = json.loads(text)
    return Tokens(**{**fields, "client": RegisteredClient(**fields["client"])})


def _hash(state: str) -> str:
    return hashlib.sha256(state.encode("utf-8", "surrogatepass")).hexdigest()


# The slash keeps these names apart from names of secrets.
def _pending_name(server_id: str) -> str:
    return f"sign-in/{server_id}"


def _tokens_name(server_id: str) -> str:
    return f"tokens/{server_id}"
