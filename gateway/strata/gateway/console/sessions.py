"""Sessions of signed-in people: a cookie that holds the API key, encrypted.

There is no table of sessions, so that every replica accepts the cookie, and none survives a change
of the server's secret. Each call of the API checks the key, so a revoked key ends its sessions.
"""

from __future__ import annotations

import hmac
import json
import secrets
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from strata.gateway.console.sealing import Sealer
from strata.gateway.http.console_path import CONSOLE_PATH
from strata.shared.clock import Clock

SESSION_LIFETIME_S = 12 * 3600.0
"""Seconds without a request after which a session has ended, at most."""

_PURPOSE = "session"
_CSRF_PURPOSE = "csrf token"
_ID_BYTES = 16
_NAME_DIGITS = 8


@dataclass(frozen=True, slots=True)
class Session:
    """A session.

    Attributes:
        id: Random, new at each sign-in.
        api_key: The key of the person.
        expiry: When it ends, in seconds since 1970.
    """

    id: str
    api_key: str = field(repr=False)
    expiry: float


class Sessions:
    """Keeps sessions in cookies.

    Args:
        sealer: Encrypts them.
        clock: The time.
    """

    def __init__(self, sealer: Sealer, clock: Clock) -> None:
        self._sealer = sealer
        self._clock = clock
        # Browsers send a cookie to all ports of a host. With a name of its own each, two servers on
        # one machine do not sign each other's users out.
        self._cookie = f"strata_console_{sealer.digest('cookie', '')[:_NAME_DIGITS]}"

    def of(self, request: Request) -> Session | None:
        """Returns the session of a request; None if there is none, or it has ended."""
        opened = self._sealer.open(_PURPOSE, request.cookies.get(self._cookie, ""))
        if opened is None:
            return None
        text, expiry = opened
        session_id, api_key = json.loads(text)
        return Session(session_id, api_key, expiry)

    def begin(self, request: Request, response: Response, api_key: str) -> None:
        """Starts a session with a key."""
        self._set(request, response, secrets.token_hex(_ID_BYTES), api_key)

    def renew(self, request: Request, response: Response, session: Session) -> None:
        """Extends a session of which less than half of the lifetime is left."""
        left_s = session.expiry - self._clock.now().timestamp()
        if left_s < SESSION_LIFETIME_S / 2:
            self._set(request, response, session.id, session.api_key)

    def end(self, response: Response) -> None:
        """Removes the cookie."""
        response.delete_cookie(self._cookie, path=CONSOLE_PATH)

    def csrf_token(self, session: Session) -> str:
        """Returns the token that each request of the session which changes something must carry."""
        return self._sealer.digest(_CSRF_PURPOSE, session.id)

    def is_csrf_token(self, session: Session, token: str) -> bool:
        """Returns whether a token is that of the session, in constant time."""
        return hmac.compare_digest(self.csrf_token(session).encode(), token.encode())

    def _set(self, request: Request, response: Response, session_id: str, api_key: str) -> None:
        text = json.dumps([session_id, api_key])
        response.set_cookie(
            self._cookie,
            self._sealer.seal(_PURPOSE, text, SESSION_LIFETIME_S),
            max_age=round(SESSION_LIFETIME_S),
            path=CONSOLE_PATH,
            secure=_by_tls(request),
            httponly=True,
            samesite="strict",
        )


def _by_tls(request: Request) -> bool:
    """Returns whether the browser speaks TLS, to this server or to a proxy in front of it."""
    proxied = request.headers.get("x-forwarded-proto", "")
    return request.url.scheme == "https" or proxied == "https"
