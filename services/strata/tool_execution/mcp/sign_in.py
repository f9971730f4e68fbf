"""Signing in to MCP servers: a person's two steps, and the tokens that calls use afterwards.

A call never waits for a person: without a token that counts it fails at once, and says so. All
replicas share the tokens of a server; whoever renews them holds their row, so that no token
that was replaced is used again, which some authorization servers take for theft.
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

from strata.shared.clock import Clock
from strata.shared.context import Caller, RequestContext, require_caller, use
from strata.shared.errors import DataLossError, FailedPreconditionError
from strata.tool_execution.custom.secrets import SecretBox
from strata.tool_execution.domain.mcp import McpServer, McpStore, OAuthClient, SignIn
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
# Of a whole step, with all that is asked meanwhile.
_STEP_S = 30.0
# Renewed so many seconds before it ends: a request takes its time.
_EARLY_S = 30.0
NOBODY = "nobody has signed in to it: somebody has to, with `strata mcp login`"
AGAIN = "somebody has to sign in to it again, with `strata mcp login`"
REVOKED = "the authorization server no longer takes what it gave"
ENDED = "the token has ended, and the authorization server gave nothing to renew it with"


class Transports(Protocol):
    """Makes the way out for the requests of one flow."""

    def __call__(self) -> GuardedTransport:
        """Returns a guarded transport."""
        ...


class NoTokenError(Exception):
    """There is no token; the words say why, and what has to be done."""


@dataclass(frozen=True, slots=True)
class Step:
    """Where a person has to go.

    Attributes:
        url: To be opened in a browser.
        issuer: Who asks there.
        scope: What for.
        state: Comes back with the browser.
        expire_time: Until when it counts.
    """

    url: str
    issuer: str
    scope: str
    state: str
    expire_time: datetime


class SignIns:
    """Sign-ins of the calling project.

    Args:
        servers: Its servers.
        store: Its sign-ins.
        box: Seals and opens.
        transports: The way out.
        clock: Tells when tokens end.
        connect_s: Seconds to connect, and to wait for an answer.
    """

    def __init__(
        self,
        servers: McpStore,
        store: SignInStore,
        box: SecretBox,
        transports: Transports,
        clock: Clock,
        connect_s: float,
    ) -> None:
        self._servers = servers
        self._store = store
        self._box = box
        self._transports = transports
        self._clock = clock
        self._connect_s = connect_s

    async def begin(self, server_id: str, redirect_uri: str) -> Step:
        """Finds the authorization server, and says where a person has to go.

        Raises:
            NotFoundError: MCP_SERVER_NOT_FOUND.
            FailedPreconditionError: MCP_SIGN_IN_FAILED, or there is no master key.
            ResourceExhaustedError: Too many were begun.
        """
        server, wanted = await self._server(server_id)
        # Before anything is asked of anybody: without a master key there is no use in it.
        self._box.seal(_begun_name(server_id), "")
        flow: Any = await asyncio.to_thread(importlib.import_module, _FLOW)
        async with self._asking(server_id, flow) as http:
            found = await flow.find(http, server.url, wanted)
            if wanted.client_id:
                client = await self._own_client(server, wanted)
            else:
                client = await flow.register(http, found, redirect_uri)
        verifier, challenge = flow.proof()
        begun = PendingSignIn(
            server_url=server.url,
            issuer=found.issuer,
            token_endpoint=str(found.metadata.token_endpoint),
            iss_required=bool(found.metadata.authorization_response_iss_parameter_supported),
            client=client,
            redirect_uri=redirect_uri,
            verifier=verifier,
            resource=found.resource,
            scope=found.scope,
        )
        state = secrets.token_urlsafe(32)
        ends = self._clock.now() + LIFETIME
        sealed = self._box.seal(_begun_name(server_id), json.dumps(asdict(begun)))
        await self._store.begin(server_id, _hash(state), sealed, ends)
        url = flow.authorization_url(found, begun, state, challenge)
        return Step(url, found.issuer, found.scope, state, ends)

    async def complete(self, server_id: str, state: str, code: str, issuer: str) -> None:
        """Gets tokens for what the browser came back with.

        Raises:
            NotFoundError: MCP_SERVER_NOT_FOUND.
            FailedPreconditionError: MCP_SIGN_IN_FAILED.
        """
        server, _ = await self._server(server_id)
        sealed = await self._store.take(server_id, _hash(state))
        if sealed is None:
            raise sign_in_failed(
                server_id,
                "This sign-in is not known: it was completed before, is older than ten minutes, or"
                " was begun elsewhere. Begin it again.",
            )
        begun = _begun(self._box.open(_begun_name(server_id), sealed))
        if begun.server_url != server.url:
            raise sign_in_failed(server_id, "The server's URL was changed. Begin it again.")
        if issuer != begun.issuer and (issuer or begun.iss_required):
            raise sign_in_failed(
                server_id,
                "The browser came back from another authorization server than the one that it was"
                " sent to. Nothing was sent to it.",
            )
        flow: Any = await asyncio.to_thread(importlib.import_module, _FLOW)
        now = self._clock.now()
        async with self._asking(server_id, flow) as http:
            tokens = await flow.exchange(http, begun, code, now.timestamp())
        signed = SignIn(require_caller().principal, now, begun.issuer)
        await self._store.put(server_id, self._sealed(server_id, tokens), signed)

    async def forget(self, server_id: str) -> None:
        """Forgets the tokens of a server.

        Raises:
            NotFoundError: MCP_SERVER_NOT_FOUND.
        """
        await self._servers.get(server_id)
        await self._store.forget(server_id)

    async def token(self, server: McpServer, refused: str = "") -> Tokens:
        """Returns tokens for a request, renewed if need be.

        Args:
            server: The server.
            refused: The token that the server has just refused.

        Raises:
            NoTokenError: Somebody has to sign in, or the authorization server cannot be asked.
        """
        tokens = self._opened(server, await self._store.get(server.id))
        if not self._ended(tokens) and tokens.access != refused:
            return tokens
        if not tokens.refresh:
            raise NoTokenError(f"{ENDED}: {AGAIN}")
        flow: Any = await asyncio.to_thread(importlib.import_module, _FLOW)
        async with self._store.renewing(server.id) as renewal:
            # Another one may have done it meanwhile.
            tokens = self._opened(server, renewal.current if renewal is not None else None)
            if renewal is None or (not self._ended(tokens) and tokens.access != refused):
                return tokens
            try:
                async with self._http() as http, flow.in_our_words():
                    now = self._clock.now().timestamp()
                    newer = replace(tokens, **await flow.renew(http, tokens, now))
            except flow.AuthorizationError as error:
                if not error.revoked:
                    raise NoTokenError(str(error)) from None
                await renewal.require_sign_in(REVOKED)
            else:
                await renewal.put(self._sealed(server.id, newer))
                return newer
        raise NoTokenError(f"{REVOKED}: {AGAIN}")

    def _opened(self, server: McpServer, kept: SealedTokens | None) -> Tokens:
        if kept is None:
            raise NoTokenError(NOBODY)
        if kept.problem:
            raise NoTokenError(f"{kept.problem}: {AGAIN}")
        try:
            tokens = _tokens(self._box.open(_tokens_name(server.id), kept.sealed))
        except (DataLossError, FailedPreconditionError) as error:
            raise NoTokenError(f"{error.message} {AGAIN}") from None
        if tokens.server_url != server.url:
            raise NoTokenError(f"its URL is another one than when somebody signed in: {AGAIN}")
        return tokens

    def _ended(self, tokens: Tokens) -> bool:
        now = self._clock.now().timestamp()
        return tokens.expire_time is not None and now >= tokens.expire_time - _EARLY_S

    def _sealed(self, server_id: str, tokens: Tokens) -> bytes:
        return self._box.seal(_tokens_name(server_id), json.dumps(asdict(tokens)))

    async def _server(self, server_id: str) -> tuple[McpServer, OAuthClient]:
        server = await self._servers.get(server_id)
        if server.oauth is None:
            raise sign_in_failed(
                server_id, f"Nobody signs in to {server.name}: its configuration has no oauth."
            )
        return server, server.oauth

    async def _own_client(self, server: McpServer, wanted: OAuthClient) -> RegisteredClient:
        if not wanted.client_secret:
            return RegisteredClient(wanted.client_id)
        found = (await self._servers.connectable([server.id])).get(server.id)
        sealed = found.sealed.get(wanted.client_secret) if found is not None else None
        if sealed is None:
            raise sign_in_failed(server.id, f"The secret {wanted.client_secret} is not stored.")
        secret = self._box.open(wanted.client_secret, sealed)
        return RegisteredClient(wanted.client_id, secret, "client_secret_basic")

    @asynccontextmanager
    async def _asking(self, server_id: str, flow: Any) -> AsyncIterator[httpx2.AsyncClient]:
        try:
            async with asyncio.timeout(_STEP_S), self._http() as http, flow.in_our_words():
                yield http
        except flow.AuthorizationError as error:
            raise sign_in_failed(server_id, str(error)) from None
        except TimeoutError:
            said = f"Signing in was not possible within {_STEP_S:.0f} seconds."
            raise sign_in_failed(server_id, said) from None

    def _http(self) -> httpx2.AsyncClient:
        return guarded_client(self._transports(), {}, self._connect_s, self._connect_s)


class SignedInAuth(httpx2.Auth):
    """Signs requests in with the tokens that a person's sign-in gave.

    A request is sent only with a token: if there is none, it fails like one that could not be
    sent, and nothing was run.

    Args:
        server: The server.
        sign_ins: Has the tokens.
        project_id: Of the server: requests are sent by tasks that belong to no call.
        tokens: Where the current ones are put, by what they are, so that they can be taken out
            of what comes back.

    Attributes:
        failed: True if there was no token to be had.
    """

    requires_response_body = False

    def __init__(
        self,
        server: McpServer,
        sign_ins: SignIns,
        project_id: str,
        tokens: MutableMapping[str, str],
    ) -> None:
        self._server = server
        self._sign_ins = sign_ins
        self._tokens = tokens
        self._project = project_id
        self._lock = asyncio.Lock()
        self.failed = False

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Yields what is to be sent for a request: once, and again with a newer token.

        Raises:
            ConnectError: There is no token to be had; of httpx2.
        """
        token = await self._token(request)
        request.headers["Authorization"] = f"Bearer {token}"
        response = yield request
        if response.status_code == 401:
            token = await self._token(request, refused=token)
            request.headers["Authorization"] = f"Bearer {token}"
            yield request

    async def _token(self, request: httpx2.Request, refused: str = "") -> str:
        context = RequestContext(caller=Caller("", self._project, "mcp"))
        try:
            # One at a time: each that renews holds a connection to the database.
            async with self._lock:
                with use(context):
                    found = await self._sign_ins.token(self._server, refused)
        except NoTokenError as error:
            self.failed = True
            raise httpx2.ConnectError(f"signing in failed: {error}", request=request) from None
        self.failed = False
        self._tokens.clear()
        self._tokens["access token"] = found.access
        if found.refresh:
            self._tokens["refresh token"] = found.refresh
        return found.access


def _begun(text: str) -> PendingSignIn:
    known = json.loads(text)
    return PendingSignIn(**{**known, "client": RegisteredClient(**known["client"])})


def _tokens(text: str) -> Tokens:
    known = json.loads(text)
    return Tokens(**{**known, "client": RegisteredClient(**known["client"])})


def _hash(state: str) -> str:
    return hashlib.sha256(state.encode("utf-8", "surrogatepass")).hexdigest()


# Names of secrets have no slash.
def _begun_name(server_id: str) -> str:
    return f"sign-in/{server_id}"


def _tokens_name(server_id: str) -> str:
    return f"tokens/{server_id}"
