"""The interceptor that authenticates the caller of each call.

Services accept internal tokens, the gateway API keys as well. The credentials of an open stream are
checked again from time to time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

from strata.protocol.errors import Reason, StrataError, UnauthenticatedError
from strata.shared.auth import TokenVerifier
from strata.shared.context import Caller, current, use
from strata.shared.interceptors.pipeline import Next, ServedMethod, ServerCall
from strata.shared.logs import get_logger

AUTHORIZATION_KEY = "authorization"
RECHECK_S = 10.0
"""Seconds between two checks of the credentials of an open stream."""

Metadata = Mapping[str, str | bytes]

_log = get_logger(__name__)


class Authenticator(Protocol):
    """Identifies the caller from the metadata of a call."""

    async def authenticate(self, method: ServedMethod, metadata: Metadata) -> Caller:
        """Returns the caller.

        Raises:
            UnauthenticatedError: Credentials are missing or wrong.
            PermissionDeniedError: The credentials do not allow this method.
        """
        ...


@runtime_checkable
class Rechecking(Protocol):
    """An authenticator whose credentials may be withdrawn while a stream is open."""

    async def recheck(self, metadata: Metadata) -> None:
        """Checks that credentials that were accepted are still valid.

        Raises:
            UnauthenticatedError: They were revoked, or have expired.
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
    """Puts the verified caller into the context; health and reflection need none.

    A stream ends when its credentials are no longer valid, if the authenticator is `Rechecking`.
    """

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._recheck = authenticator.recheck if isinstance(authenticator, Rechecking) else None

    def bind(self, method: ServedMethod, proceed: Next) -> Next:
        """Returns the authenticated call."""
        if method.infrastructure:
            return proceed
        authenticate = self._authenticator.authenticate
        recheck = self._recheck if method.shape.streaming else None

        async def run(call: ServerCall) -> Any:
            call.caller = await authenticate(method, call.metadata)
            with use(current().with_caller(call.caller)):
                if recheck is None:
                    return await proceed(call)
                return await _Rechecked(partial(recheck, call.metadata)).run(proceed(call))

        return run


class _Rechecked:
    """Runs a stream, and ends it when its credentials are no longer valid.

    Args:
        recheck: Checks the credentials.
    """

    def __init__(self, recheck: Callable[[], Awaitable[None]]) -> None:
        self._recheck = recheck
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(RECHECK_S, self._start)
        self._check: asyncio.Task[None] | None = None
        self._refusal: UnauthenticatedError | None = None
        self._scope = asyncio.timeout(None)

    async def run(self, stream: Awaitable[Any]) -> Any:
        """Waits for the end of the stream.

        Raises:
            UnauthenticatedError: The credentials are no longer valid.
        """
        try:
            async with self._scope:
                return await stream
        except TimeoutError:
            if self._refusal is None:
                raise
            raise self._refusal from None
        finally:
            self._timer.cancel()
            if self._check is not None:
                self._check.cancel()

    def _start(self) -> None:
        self._check = self._loop.create_task(self._check_once())

    async def _check_once(self) -> None:
        try:
            await self._recheck()
        except UnauthenticatedError as error:
            self._refusal = error
            self._scope.reschedule(self._loop.time())
            return
        except StrataError as error:
            _log.warning("credentials of an open stream not checked", error=repr(error))
        self._timer = self._loop.call_later(RECHECK_S, self._start)
