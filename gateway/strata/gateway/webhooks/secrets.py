"""Encrypts the signing secrets of webhooks, and decrypts them for an attempt."""

from __future__ import annotations

from strata.protocol.errors import DataLossError, FailedPreconditionError, Reason
from strata.shared.secrets import Envelope, context_of

_KIND = "webhook_secret"


class WebhookSecrets:
    """Encrypts and decrypts secrets; no decrypted secret is kept.

    Args:
        envelope: Encrypts and decrypts; None if the server has no master key.
    """

    def __init__(self, envelope: Envelope | None) -> None:
        self._envelope = envelope

    def seal(self, project_id: str, webhook_id: str, secret: str) -> bytes:
        """Encrypts a secret for storage.

        Raises:
            FailedPreconditionError: SECRETS_NOT_CONFIGURED; the server has no master key.
        """
        if self._envelope is None:
            raise FailedPreconditionError(
                "This server cannot keep secrets of webhooks: it has no master key."
                " Set STRATA_GATEWAY_MASTER_KEYS or STRATA_GATEWAY_MASTER_KEYS_FILE.",
                reason=Reason.SECRETS_NOT_CONFIGURED,
            )
        return self._envelope.seal(secret.encode("ascii"), _context(project_id, webhook_id))

    def open(self, project_id: str, webhook_id: str, sealed: bytes) -> str:
        """Decrypts a secret.

        Raises:
            DataLossError: It cannot be decrypted; the message does not contain any of it.
        """
        if self._envelope is None:
            raise DataLossError("The server has no master key to open the secret of the webhook.")
        return self._envelope.open(sealed, _context(project_id, webhook_id)).decode("ascii")


def _context(project_id: str, webhook_id: str) -> bytes:
    return context_of(project_id, _KIND, webhook_id)
