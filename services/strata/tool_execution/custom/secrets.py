"""Seals the secrets of tools, and opens them for a call."""

from __future__ import annotations

from strata.shared.context import current_project
from strata.shared.errors import DataLossError, FailedPreconditionError, Reason
from strata.shared.secrets import Envelope, context_of

_KIND = "tool_secret"


class SecretBox:
    """The secrets of the calling project. A secret is opened for each call and not kept.

    Args:
        envelope: Seals and opens; None if the server has no master key.
    """

    def __init__(self, envelope: Envelope | None = None) -> None:
        self._envelope = envelope

    def seal(self, name: str, value: str) -> bytes:
        """Returns a secret as it is to be stored.

        Raises:
            FailedPreconditionError: MODEL_NOT_CONFIGURED; the server has no master key.
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
        """Returns a secret.

        Raises:
            DataLossError: It cannot be opened here; the message says nothing of what is in it.
        """
        if self._envelope is None:
            raise DataLossError(f"The secret {name} is stored, but this server has no master key.")
        return self._envelope.open(sealed, _context(name)).decode()


def _context(name: str) -> bytes:
    return context_of(current_project(), _KIND, name)
