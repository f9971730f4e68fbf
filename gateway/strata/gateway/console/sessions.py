"""Sessions of signed-in people: a cookie that holds the API key, encrypted.

There is no table of sessions, so every replica accepts the cookie. A change of the server's secret
ends all sessions. Each call of the API checks the key, so a revoked key ends its sessions.
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
        # Browsers send a cookie to all ports of a host. Each server uses its own name, so that two
        # servers on one machine do not sign out each other's users.
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
        """Extends a session after half of its lifetime."""
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
        """Returns whether a token belongs to the session; compares in constant time."""
        return hmac.compare_digest(self.csrf_token(session).encode(), token.encode())

    def values(self, request: Request, session: Session) -> SessionValues:
        """Returns the values that the browser of a request stores for a session."""
        return SessionValues(self._sealer, self._cookie, request, session)

    def _set(self, request: Request, response: Response, session_id: str, api_key: str) -> None:
        text = json.dumps([session_id, api_key])
        sealed = self._sealer.seal(_PURPOSE, text, SESSION_LIFETIME_S)
        _set_cookie(request, response, self._cookie, sealed, SESSION_LIFETIME_S)


class SessionValues:
    """Texts that a browser keeps for one session, each encrypted in a separate cookie.

    Args:
        sealer: Encrypts them.
        prefix: Prefix of the names of the cookies.
        request: The request.
        session: The session; others cannot read the texts.
    """

    def __init__(self, sealer: Sealer, prefix: str, request: Request, session: Session) -> None:
        self._sealer = sealer
        self._prefix = prefix
        self._request = request
        self._session_id = session.id

    def get(self, name: str) -> str:
        """Returns a text; empty if there is none, or it has expired."""
        sealed = self._request.cookies.get(self._cookie(name), "")
        opened = self._sealer.open(_of_value(name), sealed)
        if opened is None:
            return ""
        session_id, _, text = opened[0].partition(" ")
        return text if session_id == self._session_id else ""

    def put(self, response: Response, name: str, text: str, lifetime_s: float) -> None:
        """Stores a text for some seconds."""
        sealed = self._sealer.seal(_of_value(name), f"{self._session_id} {text}", lifetime_s)
        _set_cookie(self._request, response, self._cookie(name), sealed, lifetime_s)

    def remove(self, response: Response, name: str) -> None:
        """Removes a text."""
        response.delete_cookie(self._cookie(name), path=CONSOLE_PATH)

    def _cookie(self, name: str) -> str:
        return f"{self._prefix}_{name}"


def _of_value(name: str) -> str:
    """Returns the purpose for which a text is encrypted."""
    return f"value {name}"


def _set_cookie(
    request: Request, response: Response, name: str, value: str, lifetime_s: float
) -> None:
    """Sets a cookie that scripts and other sites do not get."""
    response.set_cookie(
        name,
        value,
        max_age=round(lifetime_s),
        path=CONSOLE_PATH,
        secure=_by_tls(request),
        httponly=True,
        samesite="strict",
    )


def origin_of(request: Request) -> str:
    """Returns the origin of this server for the browser, such as ``https://host``."""
    # A browser names it in each form that it sends; programs do not.
    origin = request.headers.get("origin", "")
    if origin.partition("://")[2] == request.headers.get("host", " "):
        return origin
    scheme = "https" if _by_tls(request) else "http"
    return f"{scheme}://{request.headers.get('host', '')}"


def _by_tls(request: Request) -> bool:
    """Returns whether the browser uses TLS, to this server or to a proxy in front of it."""
    proxied = request.headers.get("x-forwarded-proto", "")
    return request.url.scheme == "https" or proxied == "https"
