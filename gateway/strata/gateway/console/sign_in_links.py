"""Links that sign a person in to the console, once and within minutes."""

from __future__ import annotations

from strata.gateway.console.sealing import Sealer
from strata.gateway.http.console_path import CONSOLE_PATH
from strata.shared.clock import Clock, SystemClock

LINK_LIFETIME_S = 600.0
"""Seconds for which a link can be used."""
LINK_PATH = "/sign-in/link"
TOKEN_PARAMETER = "token"  # noqa: S105

_PURPOSE = "sign-in link"


def sign_in_link(http_url: str, secret: str, api_key: str, *, clock: Clock | None = None) -> str:
    """Returns a link that signs in with an API key, which is encrypted in it.

    Args:
        http_url: Base URL of the HTTP port.
        secret: The secret of the console, see `http_application`.
        api_key: The key.
        clock: The clock; by default the system clock.
    """
    sealer = Sealer(secret, clock or SystemClock())
    token = sealer.seal(_PURPOSE, api_key, LINK_LIFETIME_S)
    return f"{http_url}{CONSOLE_PATH}{LINK_PATH}?{TOKEN_PARAMETER}={token}"


class LinkTokens:
    """Opens the tokens of links, each once.

    The used tokens are kept in memory. Tokens that were made before this process started are
    refused, because an earlier process may have accepted them.

    Args:
        sealer: Opens them.
        clock: The time.
        started: When the process started, in seconds since 1970.
    """

    def __init__(self, sealer: Sealer, clock: Clock, started: float) -> None:
        self._sealer = sealer
        self._clock = clock
        self._started = int(started)
        self._used: dict[str, float] = {}

    def take(self, token: str) -> str | None:
        """Returns the API key of a link; None if the link was used, has expired or is invalid."""
        opened = self._sealer.open(_PURPOSE, token)
        if opened is None:
            return None
        api_key, expiry = opened
        now = self._clock.now().timestamp()
        self._used = {used: end for used, end in self._used.items() if end > now}
        if token in self._used or expiry - LINK_LIFETIME_S < self._started:
            return None
        self._used[token] = expiry
        return api_key
