"""Lets the agents of runs in, beside people with API keys."""

from __future__ import annotations

from collections.abc import Collection

from strata.gateway.auth.domain import key_id_of
from strata.gateway.auth.rate import RateLimiter
from strata.gateway.registry import RUN_FOLLOW_SERVICE
from strata.shared.auth import TokenVerifier
from strata.shared.context import Caller
from strata.shared.errors import Reason, UnauthenticatedError
from strata.shared.interceptors.auth import AUTHORIZATION_KEY, Authenticator, Metadata, bearer
from strata.shared.interceptors.pipeline import Method, not_built
from strata.shared.scopes import Scope

FOR_RUNS = frozenset(
    {
        "/strata.api.gateway.v1.RunService/SendMessage",
        "/strata.api.gateway.v1.RunService/StartRun",
        "/strata.api.agent_loop.v1.AgentService/GetAgent",
        "/strata.api.agent_loop.v1.AgentService/ListAgents",
    }
)
"""What a service may call on behalf of a run: find other agents, and send them messages."""


_FOLLOWING = frozenset({Scope.RUN.value, Scope.READ.value, Scope.APPROVE.value})
"""Scopes with which a client may follow runs."""


class RunTokenAuthenticator:
    """Accepts the internal token of a run for a few methods; all else is left to the keys.

    The gateway has signed the token itself. The scopes of the key that started the run do not
    count: what an agent may do is decided by the tools that it was given, as with its memory.

    Args:
        keys: Tells callers by their API keys.
        verifier: Verifies internal tokens.
        limiter: Bounds the calls of a key; what its runs call counts too.
        methods: Paths of the methods.
    """

    def __init__(
        self,
        keys: Authenticator,
        verifier: TokenVerifier,
        limiter: RateLimiter,
        methods: Collection[str] = FOR_RUNS,
    ) -> None:
        self._keys = keys
        self._verifier = verifier
        self._limiter = limiter
        self._methods = methods

    async def authenticate(self, method: Method, metadata: Metadata) -> Caller:
        """Returns the caller.

        Raises:
            UnauthenticatedError: Credentials are missing or wrong.
            PermissionDeniedError: The key lacks the scope (``SCOPE_MISSING``).
            ResourceExhaustedError: The key makes too many calls (``QUOTA_EXCEEDED``).
        """
        if method.service == RUN_FOLLOW_SERVICE.full_name:
            return await self._gateway(method, metadata)
        if method.path not in self._methods or not _is_token(metadata):
            return await self._keys.authenticate(method, metadata)
        caller = self._verifier.verify(bearer(metadata))
        if caller.run_id is None:
            raise UnauthenticatedError(
                "The token is not that of a run.", reason=Reason.CREDENTIALS_INVALID
            )
        self._limiter.take(caller.principal)
        return caller

    async def _gateway(self, method: Method, metadata: Metadata) -> Caller:
        """Returns the caller on whose behalf another gateway follows a run."""
        if not _is_token(metadata):
            # To clients this method is one that does not exist, whoever they are.
            await self._keys.authenticate(method, metadata)
            raise not_built(method.path)
        caller = self._verifier.verify(bearer(metadata))
        if caller.run_id is not None or not caller.scopes & _FOLLOWING:
            raise not_built(method.path)
        return caller


def _is_token(metadata: Metadata) -> bool:
    """Whether credentials are written like a token: three parts with points between them."""
    given = metadata.get(AUTHORIZATION_KEY)
    if not isinstance(given, str) or given.count(".") != 2:
        return False
    return key_id_of(given.partition(" ")[2].strip()) is None
