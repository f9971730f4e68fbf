"""Encrypts the data of the console that browsers and links carry."""

from __future__ import annotations

import binascii
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode

from strata.protocol.errors import DataLossError
from strata.shared.clock import Clock
from strata.shared.secrets import Envelope, context_of

_EXPIRY_BYTES = 8
_MASTER_KEY = "c"


class Sealer:
    """Seals texts that only servers with the same secret can open, until they expire.

    Args:
        secret: The secret, which all replicas share.
        clock: The time.
    """

    def __init__(self, secret: str, clock: Clock) -> None:
        self._key = hmac.digest(secret.encode(), b"strata console", "sha256")
        self._envelope = Envelope({_MASTER_KEY: self._key})
        self._clock = clock

    def seal(self, purpose: str, text: str, lifetime_s: float) -> str:
        """Returns a text encrypted, in base64url.

        Args:
            purpose: Its purpose; it cannot be opened for another one.
            text: The text.
            lifetime_s: Seconds after which it can no longer be opened.
        """
        expiry = round(self._clock.now().timestamp() + lifetime_s)
        plain = expiry.to_bytes(_EXPIRY_BYTES, "big") + text.encode()
        sealed = self._envelope.seal(plain, context_of(purpose))
        return _text_of(sealed)

    def open(self, purpose: str, sealed: str) -> tuple[str, float] | None:
        """Returns a sealed text and the time of its expiry, in seconds since 1970.

        Returns None if it has expired, was sealed for another purpose or with another secret, or
        was changed.
        """
        try:
            raw = urlsafe_b64decode(sealed.encode("ascii") + b"=" * (-len(sealed) % 4))
            if _text_of(raw) != sealed:
                # A different encoding of the same bytes, with which a used token would count as
                # unused.
                return None
            plain = self._envelope.open(raw, context_of(purpose))
        except (binascii.Error, UnicodeEncodeError, DataLossError):
            return None
        expiry = int.from_bytes(plain[:_EXPIRY_BYTES], "big")
        if expiry <= self._clock.now().timestamp():
            return None
        return plain[_EXPIRY_BYTES:].decode(), float(expiry)

    def digest(self, purpose: str, text: str) -> str:
        """Returns a hash of a text that cannot be computed without the secret, in hexadecimal."""
        return hmac.digest(self._key, context_of(purpose, text), "sha256").hex()


def _text_of(sealed: bytes) -> str:
    return urlsafe_b64encode(sealed).rstrip(b"=").decode()
