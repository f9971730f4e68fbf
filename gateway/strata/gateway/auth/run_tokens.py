"""Authenticates calls by API key, and calls of agents by the internal token of their run."""

from __future__ import annotations

from typing import Protocol

from strata.gateway.auth.domain import key_id_of
from strata.gateway.auth.rate import RateLimiter
from strata.gateway.registry import RUN_FOLLOW_SERVICE
from strata.protocol.errors import Reason, UnauthenticatedError
from strata.shared.auth import TokenVerifier
from strata.shared.context import Caller
from strata.shared.interceptors.auth import (
    AUTHORIZATION_KEY,
    Authenticator,
    Metadata,
    Rechecking,
    bearer,
)
from strata.shared.interceptors.pipeline import ServedMethod, not_built
from strata.shared.scopes import Scope

FOR_RUNS = frozenset(
    {
        "/strata.api.gateway.v1.RunService/SendMessage",
        "/strata.api.gateway.v1.RunService/StartRun",
        "/strata.api.agent_loop.v1.AgentService/GetAgent",
        "/strata.api.agent_loop.v1.AgentService/ListAgents",
    }
)
"""Methods that a service may call on behalf of a run: find other agents, send them messages."""


_FOLLOWING = frozenset({Scope.RUN.value, Scope.READ.value, Scope.APPROVE.value})
"""Scopes with which a client may follow runs."""


class KeyAuthenticator(Authenticator, Rechecking, Protocol):
    """Authenticates callers by API key, and rechecks the keys of open streams."""


class RunTokenAuthenticator:
    """Accepts the internal token of a run for a few methods, and API keys for all others.

    The gateway has signed the token itself. The scopes of the key that started the run do not
    count: the tools of an agent decide what it may do, as with its memory.

    Args:
        keys: Authenticates callers by API key.
        verifier: Verifies internal tokens.
        limiter: Limits the rate of calls per key, including the calls of its runs.
    """

    def __init__(
        self, keys: KeyAuthenticator, verifier: TokenVerifier, limiter: RateLimiter
    ) -> None:
        self._keys = keys
        self._verifier = verifier
        self._limiter = limiter

    async def authenticate(self, method: ServedMethod, metadata: Metadata) -> Caller:
        """Returns the caller.

        Raises:
            UnauthenticatedError: Credentials are missing or wrong.
            PermissionDeniedError: The key lacks the scope (``SCOPE_MISSING``).
            ResourceExhaustedError: The key makes too many calls (``QUOTA_EXCEEDED``).
        """
        if method.service == RUN_FOLLOW_SERVICE.full_name:
            return await self._gateway(method, metadata)
        if method.path not in FOR_RUNS or not _is_token(metadata):
            return await self._keys.authenticate(method, metadata)
        caller = self._verifier.verify(bearer(metadata))
        if caller.run_id is None:
            raise UnauthenticatedError(
                "The token does not belong to a run.", reason=Reason.CREDENTIALS_INVALID
            )
        self._limiter.take(caller.principal)
        return caller

    async def recheck(self, metadata: Metadata) -> None:
        """See `Rechecking.recheck`. Internal tokens end with the call that they were issued for."""
        if not _is_token(metadata):
            await self._keys.recheck(metadata)

    async def _gateway(self, method: ServedMethod, metadata: Metadata) -> Caller:
        """Authenticates another gateway that follows a run, and returns its caller."""
        if not _is_token(metadata):
            # For clients this method does not exist.
            await self._keys.authenticate(method, metadata)
            raise not_built(method.path)
        caller = self._verifier.verify(bearer(metadata))
        if caller.run_id is not None or not caller.scopes & _FOLLOWING:
            raise not_built(method.path)
        return caller


def _is_token(metadata: Metadata) -> bool:
    """Whether the credentials have the format of a JWT: three parts with dots between them."""
    header = metadata.get(AUTHORIZATION_KEY)
    if not isinstance(header, str) or header.count(".") != 2:
        return False
    return key_id_of(header.partition(" ")[2].strip()) is None
