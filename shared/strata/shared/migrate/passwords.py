"""SCRAM verifiers, so that passwords appear in no SQL statement and in no log."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

_ITERATIONS = 4096
_SALT_BYTES = 16


def check_password(password: str) -> None:
    """Raises `ValueError` if a password is empty or not printable ASCII."""
    if not password or not password.isascii() or not password.isprintable():
        raise ValueError("a role's password must be printable ASCII")


def is_verified_by(password: str, verifier: str) -> bool:
    """Returns whether a verifier, as `scram_verifier` returns it, is that of a password."""
    try:
        salt = base64.b64decode(verifier.split("$")[1].partition(":")[2], validate=True)
    except (IndexError, ValueError):
        return False
    return hmac.compare_digest(scram_verifier(password, salt), verifier)


def scram_verifier(password: str, salt: bytes | None = None) -> str:
    """Returns the verifier that PostgreSQL stores for a password (RFC 5802, SCRAM-SHA-256).

    Args:
        password: Printable ASCII, which SASLprep leaves unchanged.
        salt: Random by default.

    Raises:
        ValueError: The password is empty or holds other characters.
    """
    check_password(password)
    salt = salt if salt is not None else secrets.token_bytes(_SALT_BYTES)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _ITERATIONS)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    stored_key = hashlib.sha256(client_key).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    encoded = [base64.b64encode(part).decode() for part in (salt, stored_key, server_key)]
    return f"SCRAM-SHA-256${_ITERATIONS}:{encoded[0]}${encoded[1]}:{encoded[2]}"
