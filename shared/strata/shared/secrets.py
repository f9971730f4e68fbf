"""Secrets at rest: envelope encryption with AES-256-GCM.

Each secret is encrypted with its own data key; the master key encrypts only data keys. A
stored secret names its master key, so that keys can be rotated: the new key seals, the old key
still opens the secrets that it sealed. The context (project, kind, name) is authenticated but not
stored: a sealed secret cannot be opened for another project, kind or name.

    1 byte version | 1 byte length of the id | id | 12 nonce | 48 data key | 12 nonce | secret

Both ciphertexts end with their 16-byte tag and authenticate everything up to the id.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import Field, SecretStr

from strata.protocol.errors import DataLossError
from strata.shared.settings import ServiceSettings

KEY_BYTES = 32
_VERSION = 1
_NONCE_BYTES = 12
_TAG_BYTES = 16
_ID_BYTES = 8
_FRAME_BYTES = 2 * _NONCE_BYTES + KEY_BYTES + 2 * _TAG_BYTES


def generate_master_key() -> str:
    """Returns a new master key as text, for use in the settings."""
    return base64.b64encode(os.urandom(KEY_BYTES)).decode("ascii")


def read_master_keys(texts: Iterable[str]) -> dict[str, bytes]:
    """Returns master keys by id, in the order of the texts; empty lines are skipped.

    The id is a digest of the key, so that keys have different ids without being named.

    Args:
        texts: Keys of 32 bytes in Base64, as `generate_master_key` makes them.

    Raises:
        ValueError: A text is not a key; the message does not show it.
    """
    keys: dict[str, bytes] = {}
    for number, text in enumerate(filter(None, map(str.strip, texts)), start=1):
        try:
            key = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) != KEY_BYTES:
            raise ValueError(f"master key {number} is not {KEY_BYTES} bytes in Base64")
        keys[hashlib.sha256(b"strata master key" + key).hexdigest()[: 2 * _ID_BYTES]] = key
    return keys


def context_of(*parts: str) -> bytes:
    """Returns the context that a secret is bound to, such as project, kind and name.

    The lengths of the parts are encoded, so that ("a", "bc") and ("ab", "c") differ.
    """
    encoded = [part.encode("utf-8") for part in parts]
    return b"".join(len(part).to_bytes(4, "big") + part for part in encoded)


class Envelope:
    """Seals secrets and opens them again.

    Args:
        master_keys: Keys by id; the first one seals, all of them open.

    Raises:
        ValueError: There is no key, a key is not 32 bytes long, or an id is empty or too long.
    """

    def __init__(self, master_keys: Mapping[str, bytes]) -> None:
        if not master_keys:
            raise ValueError("there is no master key")
        for name, key in master_keys.items():
            if len(key) != KEY_BYTES or not 0 < len(name.encode("utf-8")) < 256:
                raise ValueError("a master key needs 32 bytes and an id of 1 to 255 bytes")
        self._keys = {name.encode("utf-8"): AESGCM(key) for name, key in master_keys.items()}
        self._newest = next(iter(self._keys))

    def seal(self, plaintext: bytes, context: bytes) -> bytes:
        """Returns the secret, encrypted with its own key.

        Args:
            plaintext: The secret.
            context: See `context_of`; the same context is needed to open the secret.
        """
        header = bytes((_VERSION, len(self._newest))) + self._newest
        data_key = AESGCM.generate_key(8 * KEY_BYTES)
        wrap_nonce, nonce = os.urandom(_NONCE_BYTES), os.urandom(_NONCE_BYTES)
        wrapped = self._keys[self._newest].encrypt(wrap_nonce, data_key, header + context)
        sealed = AESGCM(data_key).encrypt(nonce, plaintext, header + context)
        return header + wrap_nonce + wrapped + nonce + sealed

    def open(self, sealed: bytes, context: bytes) -> bytes:
        """Returns the secret.

        Raises:
            DataLossError: The master key is missing, the context is another one, or the bytes
                were changed; the message does not show the contents.
        """
        length = sealed[1] if len(sealed) > 1 else 0
        body = sealed[2 + length :]
        if not sealed or sealed[0] != _VERSION or len(body) < _FRAME_BYTES:
            raise DataLossError("A stored secret is damaged: it has no known format.")
        header = sealed[: 2 + length]
        master = self._keys.get(header[2:])
        if master is None:
            raise DataLossError("A stored secret was sealed with a master key that is missing.")
        split = _NONCE_BYTES + KEY_BYTES + _TAG_BYTES
        try:
            data_key = master.decrypt(
                body[:_NONCE_BYTES], body[_NONCE_BYTES:split], header + context
            )
            rest = body[split:]
            return AESGCM(data_key).decrypt(
                rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], header + context
            )
        except InvalidTag:
            # Without a cause, so that no key material gets into a traceback.
            raise DataLossError(
                "A stored secret cannot be opened: it was changed, or belongs to another context."
            ) from None


def open_envelope(keys: Iterable[str], file: Path | None) -> Envelope | None:
    """Returns the envelope that seals a service's secrets; None if there is no master key.

    Args:
        keys: Master keys as text.
        file: File to read them from instead, one per line.

    Raises:
        OSError: The file cannot be read.
        ValueError: A master key is not valid.
    """
    texts = keys if file is None else file.read_text(encoding="ascii").splitlines()
    master_keys = read_master_keys(texts)
    return Envelope(master_keys) if master_keys else None


class MasterKeySettings(ServiceSettings):
    """Fields of the services that store secrets."""

    master_keys: tuple[SecretStr, ...] = Field(
        default=(),
        description="Keys that stored secrets are encrypted with, as a JSON list, each 32 bytes in"
        " Base64; the first one encrypts, all of them decrypt.",
    )
    master_keys_file: Path | None = Field(
        default=None, description="File to read these keys from instead, one per line."
    )

    def envelope(self) -> Envelope | None:
        """Returns the encryption of stored secrets; None if there is no master key.

        Raises:
            OSError: The file cannot be read.
            ValueError: A master key is invalid.
        """
        keys = [key.get_secret_value() for key in self.master_keys]
        return open_envelope(keys, self.master_keys_file)
