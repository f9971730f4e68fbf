"""API keys: their format and check, the cache of the authenticator, the token bucket."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from security_examples import security_examples
from strata.gateway.auth.authenticator import ApiKeyAuthenticator
from strata.gateway.auth.domain import Hasher, KeyRecord, key_id_of, new_secret
from strata.gateway.auth.rate import RateLimiter
from strata.protocol.errors import (
    PermissionDeniedError,
    ResourceExhaustedError,
    UnauthenticatedError,
)
from strata.protocol.shapes import RpcShape
from strata.shared.auth import TokenSigner, TokenVerifier, generate_key_pair, public_key_of
from strata.shared.clock import ManualClock
from strata.shared.interceptors.pipeline import ServedMethod
from strata.shared.logs import redact_text
from strata.shared.scopes import Scope

HASHER = Hasher("a pepper of the tests")
METHOD = ServedMethod("/s.S/M", "s.S", RpcShape(False, False))


def test_a_new_key_contains_its_id_and_is_never_logged() -> None:
    secret = new_secret()
    assert key_id_of(secret.text) == secret.key_id
    assert secret.text not in repr(secret)
    assert secret.text.rpartition(".")[2] not in redact_text(f"got {secret.text} from x")
    assert len({new_secret().text for _ in range(100)}) == 100


@security_examples
@given(st.text(max_size=100))
def test_other_texts_are_not_keys(text: str) -> None:
    assert key_id_of(text) is None


@pytest.mark.parametrize("cut", [slice(0, -1), slice(1, None)])
def test_truncated_keys_are_not_keys(cut: slice) -> None:
    assert key_id_of(new_secret().text[cut]) is None


def test_a_short_pepper_is_refused() -> None:
    with pytest.raises(ValueError, match="16 characters"):
        Hasher("short")


def test_the_hash_depends_on_the_pepper() -> None:
    text = new_secret().text
    assert HASHER.digest(text) == Hasher("a pepper of the tests").digest(text)
    assert HASHER.digest(text) != Hasher("another pepper, longer").digest(text)


class CountingLookup:
    """A lookup of keys that counts its calls and concurrent calls."""

    def __init__(self) -> None:
        self.records: dict[str, KeyRecord] = {}
        self.asked: list[str] = []
        self.most = self.now = 0

    def add(self, *scopes: Scope) -> tuple[str, KeyRecord]:
        secret = new_secret()
        record = KeyRecord(
            project_id="project-1",
            id=secret.key_id,
            organization_id="organization-1",
            scopes=frozenset(scopes),
            secret_hash=HASHER.digest(secret.text),
            revoked=False,
            expire_time=None,
        )
        self.records[secret.key_id] = record
        return secret.text, record

    async def find(self, key_id: str) -> KeyRecord | None:
        self.asked.append(key_id)
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.001)
        self.now -= 1
        return self.records.get(key_id)


class Door:
    """An authenticator with its lookup and clock."""

    def __init__(self, size: int = 100) -> None:
        self.clock = ManualClock()
        self.lookup = CountingLookup()
        private, _ = generate_key_pair()
        self.verifier = TokenVerifier(public_key_of(private), clock=self.clock)
        self.authenticator = ApiKeyAuthenticator(
            self.lookup,
            HASHER,
            TokenSigner(private, clock=self.clock),
            {METHOD.path: frozenset({Scope.RUN, Scope.READ})},
            RateLimiter(self.clock, per_second=0, burst=1),
            self.clock,
            ttl_s=5,
            unknown_ttl_s=1,
            size=size,
        )

    async def enter(self, secret: str) -> str:
        caller = await self.authenticator.authenticate(
            METHOD, {"authorization": f"Bearer {secret}"}
        )
        assert self.verifier.verify(caller.token) == caller
        return caller.principal


async def test_a_key_is_looked_up_once_within_the_cache_time() -> None:
    door = Door()
    secret, record = door.lookup.add(Scope.RUN)
    assert await asyncio.gather(*(door.enter(secret) for _ in range(10))) == [record.id] * 10
    door.clock.advance(4.9)
    await door.enter(secret)
    assert len(door.lookup.asked) == 1
    door.lookup.records[record.id] = replace(record, revoked=True)
    await door.enter(secret)
    door.clock.advance(0.2)
    with pytest.raises(UnauthenticatedError):
        await door.enter(secret)
    assert len(door.lookup.asked) == 2


async def test_an_unknown_key_is_cached_for_a_short_time() -> None:
    door = Door()
    for _ in range(5):
        with pytest.raises(UnauthenticatedError):
            await door.enter(new_secret().text)
    unknown = new_secret().text
    for _ in range(5):
        with pytest.raises(UnauthenticatedError):
            await door.enter(unknown)
    assert len(door.lookup.asked) == 6
    door.clock.advance(1.1)
    with pytest.raises(UnauthenticatedError):
        await door.enter(unknown)
    assert len(door.lookup.asked) == 7


async def test_the_cache_and_concurrent_lookups_are_bounded() -> None:
    door = Door(size=10)
    await asyncio.gather(
        *(door.enter(new_secret().text) for _ in range(50)), return_exceptions=True
    )
    assert door.lookup.most <= 4
    assert len(door.authenticator._cached_keys) <= 10
    assert len(door.authenticator._unknown_ids) <= 10


async def test_unknown_keys_neither_delay_nor_displace_one_that_is_used() -> None:
    door = Door(size=10)
    secret, record = door.lookup.add(Scope.RUN)
    await door.enter(secret)
    door.clock.advance(5.1)
    invented = [asyncio.create_task(door.enter(new_secret().text)) for _ in range(200)]
    await asyncio.sleep(0)
    assert await door.enter(secret) == record.id
    assert door.lookup.asked.index(record.id, 1) < 10
    await asyncio.gather(*invented, return_exceptions=True)
    before = len(door.lookup.asked)
    await door.enter(secret)
    assert len(door.lookup.asked) == before


async def test_a_valid_id_with_a_wrong_secret_is_refused() -> None:
    door = Door()
    secret, _ = door.lookup.add(Scope.RUN)
    other = new_secret().text
    forged = secret.partition(".")[0] + "." + other.partition(".")[2]
    with pytest.raises(UnauthenticatedError):
        await door.enter(forged)
    await door.enter(secret)


async def test_an_expired_key_is_refused_although_it_is_cached() -> None:
    door = Door()
    secret, record = door.lookup.add(Scope.RUN)
    expire = door.clock.now() + timedelta(seconds=2)
    door.lookup.records[record.id] = replace(record, expire_time=expire)
    await door.enter(secret)
    door.clock.advance(2)
    with pytest.raises(UnauthenticatedError):
        await door.enter(secret)
    assert len(door.lookup.asked) == 1


async def test_a_missing_scope_is_named() -> None:
    door = Door()
    secret, _ = door.lookup.add(Scope.WRITE)
    with pytest.raises(PermissionDeniedError) as raised:
        await door.enter(secret)
    assert raised.value.metadata == {"scope": "read or run"}


@security_examples
@given(st.lists(st.floats(0, 3), min_size=1, max_size=60))
def test_a_bucket_never_gives_more_than_burst_and_rate(pauses: list[float]) -> None:
    clock = ManualClock()
    limiter = RateLimiter(clock, per_second=2, burst=5)
    taken = 0
    for pause in pauses:
        clock.advance(pause)
        try:
            limiter.take("key-1")
            taken += 1
        except ResourceExhaustedError as error:
            clock.advance((error.retry_after or 0.0) + 1e-6)
            limiter.take("key-1")
            taken += 1
    assert taken <= 5 + 2 * clock.monotonic() + 1e-6


def test_each_key_has_its_own_bucket_and_idle_buckets_are_removed() -> None:
    limiter = RateLimiter(ManualClock(), per_second=1, burst=1, size=2)
    for key in ("a", "b"):
        limiter.take(key)
        with pytest.raises(ResourceExhaustedError):
            limiter.take(key)
    limiter.take("c")
    limiter.take("a")
