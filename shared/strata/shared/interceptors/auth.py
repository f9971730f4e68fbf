"""Authenticates callers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from strata.protocol.errors import Reason, UnauthenticatedError
from strata.shared.auth import TokenVerifier
from strata.shared.context import Caller, current, use
from strata.shared.interceptors.pipeline import Next, ServedMethod, ServerCall

AUTHORIZATION_KEY = "authorization"

Metadata = Mapping[str, str | bytes]


class Authenticator(Protocol):
    """Identifies the caller from the metadata of a call."""

    async def authenticate(self, method: ServedMethod, metadata: Metadata) -> Caller:
        """Returns the caller.

        Raises:
            UnauthenticatedError: Credentials are missing or wrong.
            PermissionDeniedError: The credentials do not allow this method.
        """
        ...


@dataclass(frozen=True, slots=True)
class BoundKeys:
    """Keys whose tokens are accepted by some methods only.

    Attributes:
        verifier: Verifies tokens with these keys.
        methods: Paths of the methods, ``/package.Service/Method``.
    """

    verifier: TokenVerifier
    methods: frozenset[str]


class TokenAuthenticator:
    """Accepts the internal token as ``authorization: Bearer <token>``: for services.

    Args:
        verifier: Verifies tokens with the gateway's keys, which every method accepts.
        bound: Further keys, such as the key for another service's background work. A key that is
            in both is accepted by every method.
    """

    def __init__(self, verifier: TokenVerifier, bound: Sequence[BoundKeys] = ()) -> None:
        self._verifier = verifier
        self._bound = tuple(bound)

    async def authenticate(
        self,
        method: ServedMethod,
        metadata: Metadata,
    ) -> Caller:
        """Returns the caller that the token identifies.

        Raises:
            UnauthenticatedError: No token, or one that is not valid.
        """
        token = bearer(metadata)
        for keys in self._bound:
            if method.path in keys.methods and keys.verifier.knows(token):
                return keys.verifier.verify(token)
        return self._verifier.verify(token)


def bearer(metadata: Metadata) -> str:
    """Returns the credentials after ``Bearer`` in the ``authorization`` metadata.

    Raises:
        UnauthenticatedError: The metadata is missing (``CREDENTIALS_MISSING``) or has another
            scheme (``CREDENTIALS_INVALID``).
    """
    value = metadata.get(AUTHORIZATION_KEY)
    if not value:
        raise UnauthenticatedError(
            'This call needs the metadata "authorization: Bearer <credentials>".',
            reason=Reason.CREDENTIALS_MISSING,
        )
    scheme, _, credentials = (value if isinstance(value, str) else "").partition(" ")
    if scheme.lower() != "bearer" or not credentials.strip():
        raise UnauthenticatedError(
            'The metadata "authorization" must have the form "Bearer <credentials>".',
            reason=Reason.CREDENTIALS_INVALID,
        )
    return credentials.strip()


class Authenticate:
    """Puts the verified caller into the context; health and reflection need none."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    def bind(self, method: ServedMethod, proceed: Next) -> Next:
        """Returns the authenticated call."""
        if method.infrastructure:
            return proceed
        authenticate = self._authenticator.authenticate

        async def run(call: ServerCall) -> Any:
            call.caller = await authenticate(method, call.metadata)
            with use(current().with_caller(call.caller)):
                return await proceed(call)

        return run
