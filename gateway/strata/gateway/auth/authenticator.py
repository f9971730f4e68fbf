"""Authenticates a caller by API key, and issues the internal token of the call."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping

from strata.gateway.auth.domain import Hasher, KeyLookup, KeyRecord, key_id_of
from strata.gateway.auth.rate import RateLimiter
from strata.protocol.errors import PermissionDeniedError, Reason, UnauthenticatedError
from strata.shared.auth import TokenSigner
from strata.shared.clock import Clock
from strata.shared.context import Caller
from strata.shared.interceptors.auth import Metadata, bearer
from strata.shared.interceptors.pipeline import ServedMethod
from strata.shared.scopes import OrganizationScope, with_included

API_KEY_HEADER = "x-api-key"

# Maximum number of concurrent look-ups of keys that are not cached; others wait, so that the pool
# stays free.
_LOOKUPS_AT_ONCE = 4


class ApiKeyAuthenticator:
    """Accepts ``authorization: Bearer <key>`` or ``x-api-key: <key>``.

    A looked-up key is cached for `ttl_s`, so a revoked key works for at most that long on every
    replica; an unknown id is cached for `unknown_ttl_s`. The secret is compared on every call.
    Neither the response nor its time reveals whether the id or the secret was wrong.

    Args:
        lookup: Finds keys.
        hasher: Hashes secrets.
        signer: Signs the internal token of the call.
        policy: Maps the path of a method to scopes; a key needs one of them.
        limiter: Limits the rate of calls per key.
        clock: The time.
        ttl_s: Seconds to cache a key.
        unknown_ttl_s: Seconds to cache an unknown id.
        size: Maximum number of cached keys, and of cached unknown ids.
    """

    def __init__(
        self,
        lookup: KeyLookup,
        hasher: Hasher,
        signer: TokenSigner,
        policy: Mapping[str, frozenset[str]],
        limiter: RateLimiter,
        clock: Clock,
        *,
        ttl_s: float = 5.0,
        unknown_ttl_s: float = 1.0,
        size: int = 10_000,
    ) -> None:
        self._lookup = lookup
        self._hasher = hasher
        self._signer = signer
        self._policy = policy
        self._limiter = limiter
        self._clock = clock
        self._ttl_s = ttl_s
        self._unknown_ttl_s = unknown_ttl_s
        self._size = size
        # Each with the time at which it must be looked up again.
        self._cached_keys: OrderedDict[str, tuple[KeyRecord, float]] = OrderedDict()
        self._unknown_ids: OrderedDict[str, float] = OrderedDict()
        self._lookups: dict[str, asyncio.Task[KeyRecord | None]] = {}
        # Keys in use are not kept waiting, or forgotten, because of invented ones.
        self._lookup_slots = asyncio.Semaphore(_LOOKUPS_AT_ONCE)
        self._slots_of_cached_keys = asyncio.Semaphore(_LOOKUPS_AT_ONCE)

    async def authenticate(self, method: ServedMethod, metadata: Metadata) -> Caller:
        """Returns the caller, with the internal token for calls on its behalf.

        Raises:
            UnauthenticatedError: No key (``CREDENTIALS_MISSING``), or one that is wrong,
                revoked or expired (``CREDENTIALS_INVALID``).
            PermissionDeniedError: The key lacks the scope (``SCOPE_MISSING``).
            ResourceExhaustedError: The key makes too many calls (``QUOTA_EXCEEDED``).
        """
        record = await self._verified(_credential_in(metadata))
        scopes = with_included(record.scopes)
        needed = self._policy.get(method.path)
        if needed is not None and not needed & scopes:
            raise _denied(record, needed)
        self._limiter.take(record.id)
        organization_id, project_id = record.organization_id, record.project_id
        token = self._signer.mint(
            organization_id, project_id, record.id, scopes, partition=record.partition
        )
        return Caller(
            organization_id,
            project_id,
            record.id,
            scopes,
            token=token,
            partition=record.partition,
        )

    async def recheck(self, metadata: Metadata) -> None:
        """See `Rechecking.recheck`.

        Raises:
            UnauthenticatedError: ``CREDENTIALS_INVALID``.
        """
        await self._verified(_credential_in(metadata))

    def forget(self, key_id: str) -> None:
        """Drops a key that was revoked here from the cache."""
        self._cached_keys.pop(key_id, None)

    async def _verified(self, text: str) -> KeyRecord:
        key_id = key_id_of(text)
        record = await self._find(key_id) if key_id is not None else None
        if record is None or not record.valid(self._hasher.digest(text), self._clock.now()):
            raise UnauthenticatedError(
                "The API key is not valid.", reason=Reason.CREDENTIALS_INVALID
            )
        return record

    async def _find(self, key_id: str) -> KeyRecord | None:
        now = self._clock.monotonic()
        cached = self._cached_keys.get(key_id)
        if cached is not None and now < cached[1]:
            self._cached_keys.move_to_end(key_id)
            return cached[0]
        if now < self._unknown_ids.get(key_id, now):
            self._unknown_ids.move_to_end(key_id)
            return None
        lookup = self._lookups.get(key_id)
        if lookup is None:
            # All waiting calls share one lookup; none of them may cancel it.
            lookup = asyncio.create_task(self._look_up(key_id))
            self._lookups[key_id] = lookup
            lookup.add_done_callback(lambda _: self._lookups.pop(key_id, None))
        return await asyncio.shield(lookup)

    async def _look_up(self, key_id: str) -> KeyRecord | None:
        async with (
            self._slots_of_cached_keys if key_id in self._cached_keys else self._lookup_slots
        ):
            record = await self._lookup.find(key_id)
        now = self._clock.monotonic()
        self._cached_keys.pop(key_id, None)
        self._unknown_ids.pop(key_id, None)
        if record is not None:
            self._cached_keys[key_id] = (record, now + self._ttl_s)
        else:
            self._unknown_ids[key_id] = now + self._unknown_ttl_s
        for remembered in (self._cached_keys, self._unknown_ids):
            if len(remembered) > self._size:
                remembered.popitem(last=False)
        return record


def _denied(record: KeyRecord, needed: frozenset[str]) -> PermissionDeniedError:
    scope_names = " or ".join(sorted(needed))
    message = f"The key lacks the scope {scope_names}."
    if record.project_id and needed.issubset(OrganizationScope):
        message = (
            f"This call needs an organization key with the scope {scope_names}, not a project key."
        )
    elif not record.project_id and needed.isdisjoint(OrganizationScope):
        message = (
            f"This call needs a project key with the scope {scope_names}. An organization key "
            "cannot access the data of projects; create a project key with CreateApiKey (strata "
            "keys create)."
        )
    return PermissionDeniedError(message, metadata={"scope": scope_names})


def _credential_in(metadata: Metadata) -> str:
    header = metadata.get(API_KEY_HEADER)
    if isinstance(header, str) and header and "authorization" not in metadata:
        return header.strip()
    return bearer(metadata)
