"""Encrypts model keys for storage, and decrypts them when a model is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind
from strata.agent_loop.domain.model.keys import SealedKey, in_force
from strata.agent_loop.models.registry import EndpointKey
from strata.protocol.errors import DataLossError, FailedPreconditionError, Reason
from strata.shared.context import current_project
from strata.shared.logs import get_logger
from strata.shared.secrets import Envelope, context_of

_KIND = "model_key"

_log = get_logger(__name__)


class Keyring:
    """Encrypts and decrypts the model keys of the calling project.

    Keys are decrypted for each turn and not cached, so that changing or deleting a key, here or at
    another replica, takes effect with the next turn.

    Args:
        envelope: Encrypts and decrypts; None if the server has no master key.
    """

    def __init__(self, envelope: Envelope | None = None) -> None:
        self._envelope = envelope

    def seal(self, provider: str, agent_id: str, api_key: str) -> SealedKey:
        """Returns a key in encrypted form.

        Raises:
            FailedPreconditionError: MODEL_NOT_CONFIGURED; the server has no master key.
        """
        if self._envelope is None:
            raise FailedPreconditionError(
                "This server cannot store keys: it has no master key. Set "
                "STRATA_AGENT_LOOP_MASTER_KEYS or STRATA_AGENT_LOOP_MASTER_KEYS_FILE.",
                reason=Reason.MODEL_NOT_CONFIGURED,
                metadata={"provider": provider},
            )
        sealed = self._envelope.seal(api_key.encode("ascii"), _context(provider, agent_id))
        return SealedKey(provider, agent_id, sealed)

    def open_for(self, provider: str, keys: Sequence[SealedKey]) -> Mapping[str, EndpointKey]:
        """Returns the key of an endpoint, by the endpoint's name; empty if none is stored.

        Raises:
            ModelError: AUTHENTICATION; the stored key cannot be decrypted.
        """
        key = in_force(keys).get(provider)
        return {} if key is None else {provider: self._open(key)}

    def open_all(self, keys: Sequence[SealedKey]) -> Mapping[str, EndpointKey]:
        """Returns all keys that can be decrypted, by name of the endpoint."""
        api_keys = {}
        for provider, key in in_force(keys).items():
            try:
                api_keys[provider] = self._open(key)
            except ModelError as error:
                _log.warning(
                    "a stored model key cannot be used", provider=provider, error=str(error)
                )
        return api_keys

    def _open(self, key: SealedKey) -> EndpointKey:
        owner = _owner(key)
        try:
            value = self._unsealed(key)
        except DataLossError as error:
            raise ModelError(
                ModelErrorKind.AUTHENTICATION,
                f"{owner[0].upper()}{owner[1:]} cannot be used. {error.message}"
                f" Store it again with `strata models key set {key.provider}`.",
            ) from None
        return EndpointKey(value.decode("ascii"), owner)

    def _unsealed(self, key: SealedKey) -> bytes:
        if self._envelope is None:
            raise DataLossError("This server has no master key.")
        return self._envelope.open(key.sealed, _context(key.provider, key.agent_id))


def _owner(key: SealedKey) -> str:
    whose = "the agent's own" if key.agent_id else "the project's"
    return f'{whose} key for "{key.provider}"'


def _context(provider: str, agent_id: str) -> bytes:
    return context_of(current_project(), _KIND, agent_id, provider)
