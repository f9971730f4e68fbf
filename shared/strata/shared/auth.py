"""Signs and verifies the internal token that carries a caller's identity between services.

The gateway authenticates a key or user once and mints a short-lived EdDSA token
{organization, project, principal, scopes, run, partition}; every service verifies it on every
call. Verification takes about 260 us, so verified tokens are cached until they
expire, and the signer returns the same token again while it is fresh. A signer
passes its tokens to the cache of the verifier of its own process: the signature
that it has just made with a key that the verifier trusts proves nothing new.

Keys are named by a fingerprint of the public key (``kid``), so that they rotate
without configuration: give every service the new public key beside the old one,
change the private key at the gateway, and drop the old public key after the
longest token life.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from jwt.utils import base64url_decode

from strata.protocol.errors import Reason, UnauthenticatedError
from strata.shared.clock import Clock, SystemClock
from strata.shared.context import Caller
from strata.shared.partitions import DEFAULT_PARTITION
from strata.shared.scopes import OrganizationScope

ISSUER = "strata-gateway"
AUDIENCE = "strata-internal"
ALGORITHM = "EdDSA"
DEFAULT_TTL = timedelta(minutes=5)
CLOCK_LEEWAY_S = 90.0
"""How far the clocks of signer and verifier may differ, in either direction, seconds."""

_CACHE_SIZE = 4096
_MAX_TOKEN_LENGTH = 4096
_REUSE_S = 60.0
_PEM_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----.+?-----END \1-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of a token.

    Attributes:
        organization_id: Claim ``org``.
        project_id: Claim ``prj``; empty for an organization key.
        principal: Claim ``sub``.
        scopes: Claim ``scope``, joined by spaces on the wire.
        run_id: Claim ``run``, absent outside of a run.
        partition: Claim ``prt``, absent for the default partition.
    """

    organization_id: str
    project_id: str
    principal: str
    scopes: frozenset[str]
    run_id: str | None = None
    partition: str = DEFAULT_PARTITION


def generate_key_pair() -> tuple[str, str]:
    """Returns a new (private, public) key pair as PEM texts (PKCS #8, SubjectPublicKeyInfo)."""
    private = Ed25519PrivateKey.generate()
    private_pem = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
    return private_pem, _public_pem(private.public_key())


def public_key_of(private_key_pem: str) -> str:
    """Returns the public half of a private key, as PEM text.

    Raises:
        ValueError: Not an Ed25519 private key.
    """
    return _public_pem(_load_private(private_key_pem).public_key())


class TokenSigner:
    """Mints internal tokens.

    Args:
        private_key_pem: An Ed25519 private key.
        clock: Source of the time.
        verifier: The verifier of the same process, which need not verify the tokens that are
            minted here if it trusts the key.

    Raises:
        ValueError: Not an Ed25519 private key.
    """

    def __init__(
        self,
        private_key_pem: str,
        *,
        clock: Clock | None = None,
        verifier: TokenVerifier | None = None,
    ) -> None:
        self._key = _load_private(private_key_pem)
        self._kid = _key_id(self._key.public_key())
        self._clock = clock or SystemClock()
        self._verifier = verifier
        # Each with the times of its issue and expiry.
        self._minted: OrderedDict[tuple[Claims, float], tuple[str, float, float]] = OrderedDict()

    def mint(
        self,
        organization_id: str,
        project_id: str,
        principal: str,
        scopes: Iterable[str],
        run_id: str | None = None,
        ttl: timedelta = DEFAULT_TTL,
        partition: str = DEFAULT_PARTITION,
    ) -> str:
        """Returns a token that is valid for at least `ttl` from now.

        The token of a run is forwarded for as long as the run lasts: its `ttl` must
        cover the longest turn. A token may be handed out again for equal claims, up to
        a minute after it was made, so that the services find it in their cache.
        """
        claims = Claims(
            organization_id, project_id, principal, frozenset(scopes), run_id, partition
        )
        seconds = ttl.total_seconds()
        now = self._clock.now().timestamp()
        key = (claims, seconds)
        cached = self._minted.get(key)
        if cached is not None:
            token, issued, expires = cached
            # After the clock was set back, tokens from before it are refused as of the future.
            if issued <= now and expires - now >= seconds:
                self._minted.move_to_end(key)
                return token
        expires = now + seconds + min(seconds, _REUSE_S)
        token = self._sign(claims, now, expires)
        self._minted[key] = (token, now, expires)
        if len(self._minted) > _CACHE_SIZE:
            self._minted.popitem(last=False)
        return token

    def _sign(self, claims: Claims, now: float, expires: float) -> str:
        payload: dict[str, object] = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "iat": now,
            "exp": expires,
            "org": claims.organization_id,
            "prj": claims.project_id,
            "sub": claims.principal,
            "scope": " ".join(sorted(claims.scopes)),
        }
        if claims.run_id is not None:
            payload["run"] = claims.run_id
        if claims.partition != DEFAULT_PARTITION:
            payload["prt"] = claims.partition
        token = jwt.encode(payload, self._key, algorithm=ALGORITHM, headers={"kid": self._kid})
        if self._verifier is not None:
            self._verifier.trust(token, self._kid, payload)
        return token


class TokenVerifier:
    """Verifies internal tokens.

    Args:
        public_keys_pem: Ed25519 public keys; each text may hold several PEM blocks.
        clock: Source of the time.
        cache_size: How many verified tokens are cached.

    Raises:
        ValueError: No key, or one that is not an Ed25519 public key.
    """

    def __init__(
        self,
        public_keys_pem: str | Iterable[str],
        *,
        clock: Clock | None = None,
        cache_size: int = _CACHE_SIZE,
    ) -> None:
        self._clock = clock or SystemClock()
        self._cache_size = cache_size
        self._cache: OrderedDict[str, tuple[Caller, float]] = OrderedDict()
        self._keys: dict[str, Ed25519PublicKey] = {}
        self.replace_keys(public_keys_pem)

    def replace_keys(self, public_keys_pem: str | Iterable[str]) -> None:
        """Replaces the trusted keys and clears the cache of verified tokens.

        Raises:
            ValueError: No key, or one that is not an Ed25519 public key.
        """
        texts = [public_keys_pem] if isinstance(public_keys_pem, str) else public_keys_pem
        blocks = [match.group(0) for text in texts for match in _PEM_BLOCK.finditer(text)]
        keys = [_load_public(block) for block in blocks]
        if not keys:
            raise ValueError("at least one public key is needed to verify internal tokens")
        self._keys = {_key_id(key): key for key in keys}
        self._cache.clear()

    def knows(self, token: str) -> bool:
        """Returns whether a token names a trusted key; the signature is not checked."""
        try:
            return len(token) <= _MAX_TOKEN_LENGTH and (
                jwt.get_unverified_header(token).get("kid") in self._keys
            )
        except (jwt.PyJWTError, TypeError, ValueError, RecursionError):
            return False

    def verify(self, token: str) -> Caller:
        """Returns the caller that the token identifies.

        Issue and expiry times are checked with a tolerance of `CLOCK_LEEWAY_S`, because the
        clocks of signer and verifier can differ.

        Raises:
            UnauthenticatedError: Forged, expired, for another audience, signed by an
                unknown key or not a token (``CREDENTIALS_INVALID``).
        """
        now = self._clock.now().timestamp()
        cached = self._cache.get(token)
        if cached is not None:
            if now < cached[1] + CLOCK_LEEWAY_S:
                self._cache.move_to_end(token)
                return cached[0]
            del self._cache[token]
        caller, expires = self._decode(token, now)
        self._keep(token, caller, expires)
        return caller

    def trust(self, token: str, key_id: str, payload: Mapping[str, object]) -> None:
        """Caches a token that this process has just signed, as if `verify` had verified it.

        It does nothing if the key is not trusted or a claim is wrong: `verify` refuses the token.

        Args:
            token: The token.
            key_id: The key that it was signed with.
            payload: Its claims.
        """
        if key_id not in self._keys or len(token) > _MAX_TOKEN_LENGTH:
            return
        # A token that would be refused is refused when it is used.
        with suppress(UnauthenticatedError):
            self._keep(token, *_checked(payload, token, self._clock.now().timestamp()))

    def _keep(self, token: str, caller: Caller, expires: float) -> None:
        self._cache[token] = (caller, expires)
        if len(self._cache) > self._cache_size:
            self._cache.popitem(last=False)

    def _decode(self, token: str, now: float) -> tuple[Caller, float]:
        if len(token) > _MAX_TOKEN_LENGTH:
            raise _invalid()
        try:
            key = self._keys[_key_named_by(token)]
            # Times are checked below, against the injected clock.
            payload = jwt.decode(
                token,
                key,
                algorithms=[ALGORITHM],
                audience=AUDIENCE,
                issuer=ISSUER,
                options={
                    "require": ["iss", "aud", "iat", "exp", "org", "prj", "sub", "scope"],
                    "verify_exp": False,
                    "verify_iat": False,
                },
            )
        except (jwt.PyJWTError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise _invalid() from error
        return _checked(payload, token, now)


@lru_cache(maxsize=256)
def _scopes_in(text: str) -> frozenset[str]:
    # A verifier keeps thousands of callers, nearly all with the same scopes.
    return frozenset(text.split())


def _checked(payload: Mapping[str, Any], token: str, now: float) -> tuple[Caller, float]:
    """Returns the caller that the claims of a signed token identify, and when it expires.

    Raises:
        UnauthenticatedError: A claim is wrong, or the token is outside of its lifetime.
    """
    try:
        issued, expires = float(payload["iat"]), float(payload["exp"])
        caller = Caller(
            organization_id=_text(payload["org"]),
            project_id=_text(payload["prj"]),
            principal=_text(payload["sub"]),
            scopes=_scopes_in(_text(payload["scope"])),
            run_id=_text(payload["run"]) if "run" in payload else None,
            token=token,
            partition=_text(payload.get("prt", DEFAULT_PARTITION)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _invalid() from error
    if not _is_placed(caller):
        raise _invalid()
    if now < issued - CLOCK_LEEWAY_S:
        raise _outside_lifetime(f"was issued {issued - now:.0f} s in the future")
    if now >= expires + CLOCK_LEEWAY_S:
        raise _outside_lifetime(f"expired {now - expires:.0f} s ago")
    return caller, expires


def _key_named_by(token: str) -> str:
    # PyJWT would look at each character of the whole token, and again when it verifies it.
    header = json.loads(base64url_decode(token.partition(".")[0]))
    return _text(header["kid"])


def _is_placed(caller: Caller) -> bool:
    """Returns whether the caller has a project, or only scopes that need none."""
    if caller.project_id:
        return True
    return bool(caller.scopes) and caller.scopes.issubset(OrganizationScope)


def _invalid() -> UnauthenticatedError:
    return UnauthenticatedError(
        "The internal token is not valid.", reason=Reason.CREDENTIALS_INVALID
    )


def _outside_lifetime(problem: str) -> UnauthenticatedError:
    return UnauthenticatedError(
        f"The internal token {problem} by the clock of this service; do the clocks of the "
        "services agree?",
        reason=Reason.CREDENTIALS_INVALID,
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("claim is not a text")
    return value


def _key_id(key: Ed25519PublicKey) -> str:
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()[:16]


def _public_pem(key: Ed25519PublicKey) -> str:
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    ).decode()


def _load_private(pem: str) -> Ed25519PrivateKey:
    try:
        key = serialization.load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError("the signing key is not a readable PEM private key") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError("the signing key must be an Ed25519 key")  # noqa: TRY004
    return key


def _load_public(pem: str) -> Ed25519PublicKey:
    try:
        key = serialization.load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError("a verification key is not a readable PEM public key") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("a verification key must be an Ed25519 key")  # noqa: TRY004
    return key
