"""Seals the secrets that webhooks are signed with, and opens them for an attempt."""

from __future__ import annotations

from strata.shared.errors import DataLossError, FailedPreconditionError, Reason
from strata.shared.secrets import Envelope, context_of

_KIND = "webhook_secret"


class WebhookSecrets:
    """Secrets at rest; none is kept opened.

    Args:
        envelope: Seals and opens; None if the server has no master key.
    """

    def __init__(self, envelope: Envelope | None) -> None:
        self._envelope = envelope

    def seal(self, project_id: str, webhook_id: str, secret: str) -> bytes:
        """Returns a secret as it is to be stored.

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
        """Returns a secret.

        Raises:
            DataLossError: It cannot be opened here; the message says nothing of what is in it.
        """
        if self._envelope is None:
            raise DataLossError("The server has no master key to open the secret of the webhook.")
        return self._envelope.open(sealed, _context(project_id, webhook_id)).decode("ascii")


def _context(project_id: str, webhook_id: str) -> bytes:
    return context_of(project_id, _KIND, webhook_id)
