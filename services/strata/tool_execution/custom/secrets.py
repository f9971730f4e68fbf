"""Encryption of the secrets of tools."""

from __future__ import annotations

from strata.protocol.errors import DataLossError, FailedPreconditionError, Reason
from strata.shared.context import current_project
from strata.shared.secrets import Envelope, context_of

_KIND = "tool_secret"


class SecretBox:
    """Encrypts and decrypts the secrets of the calling project; keeps no decrypted secret.

    Args:
        envelope: Encryption with the master keys; None if the server has none.
    """

    def __init__(self, envelope: Envelope | None = None) -> None:
        self._envelope = envelope

    def seal(self, name: str, value: str) -> bytes:
        """Returns a secret encrypted for storage.

        Raises:
            FailedPreconditionError: The server has no master key (``MODEL_NOT_CONFIGURED``).
        """
        if self._envelope is None:
            raise FailedPreconditionError(
                "This server cannot keep secrets: it has no master key. Set"
                " STRATA_TOOL_EXECUTION_MASTER_KEYS or STRATA_TOOL_EXECUTION_MASTER_KEYS_FILE.",
                reason=Reason.MODEL_NOT_CONFIGURED,
                metadata={"name": name},
            )
        return self._envelope.seal(value.encode(), _context(name))

    def open(self, name: str, sealed: bytes) -> str:
        """Returns a decrypted secret.

        Raises:
            DataLossError: The secret cannot be decrypted; the message reveals nothing of it.
        """
        if self._envelope is None:
            raise DataLossError(f"The secret {name} is stored, but this server has no master key.")
        return self._envelope.open(sealed, _context(name)).decode()


def _context(name: str) -> bytes:
    return context_of(current_project(), _KIND, name)
