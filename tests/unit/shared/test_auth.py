"""Internal tokens: signing, verification and caching."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from strata.protocol.errors import Reason, UnauthenticatedError
from strata.protocol.shapes import RpcShape
from strata.shared.auth import (
    AUDIENCE,
    CLOCK_LEEWAY_S,
    ISSUER,
    TokenSigner,
    TokenVerifier,
    generate_key_pair,
    public_key_of,
)
from strata.shared.clock import ManualClock
from strata.shared.interceptors.auth import BoundKeys, TokenAuthenticator
from strata.shared.interceptors.pipeline import ServedMethod
from strata.shared.scopes import OrganizationScope

PRIVATE, PUBLIC = generate_key_pair()


def refused(verifier: TokenVerifier, token: str) -> None:
    with pytest.raises(UnauthenticatedError) as raised:
        verifier.verify(token)
    assert raised.value.reason is Reason.CREDENTIALS_INVALID
    assert token[:40] not in str(raised.value) or not token


def payload(clock: ManualClock) -> dict[str, Any]:
    now = clock.now().timestamp()
    return {
        "iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + 60,
        "org": "o", "prj": "p", "sub": "k", "scope": "",
    }  # fmt: skip


def test_a_minted_token_identifies_the_caller() -> None:
    token = TokenSigner(PRIVATE).mint("org-1", "project-1", "key-1", {"b", "a"}, run_id="run-1")
    caller = TokenVerifier(PUBLIC).verify(token)
    assert (caller.organization_id, caller.project_id) == ("org-1", "project-1")
    assert (caller.principal, caller.run_id) == ("key-1", "run-1")
    assert caller.scopes == {"a", "b"}
    assert caller.token == token
    assert token not in repr(caller)


def test_callers_with_the_same_scopes_share_them() -> None:
    signer, verifier = TokenSigner(PRIVATE), TokenVerifier(PUBLIC)
    runs = [signer.mint("o", "p", "k", ("a", "b"), run_id=f"run-{n}") for n in range(2)]

    first, second = (verifier.verify(token) for token in runs)

    assert first.scopes == {"a", "b"}
    assert first.scopes is second.scopes


def test_a_token_expires_after_its_lifetime_and_the_leeway() -> None:
    clock = ManualClock()
    token = TokenSigner(PRIVATE, clock=clock).mint("o", "p", "k", (), ttl=timedelta(minutes=5))
    verifier = TokenVerifier(PUBLIC, clock=clock)
    clock.advance(299)
    verifier.verify(token)
    clock.advance(61 + CLOCK_LEEWAY_S)
    refused(verifier, token)
    refused(TokenVerifier(PUBLIC, clock=clock), token)


def test_a_recent_token_is_reused_and_an_older_one_is_replaced() -> None:
    clock = ManualClock()
    signer = TokenSigner(PRIVATE, clock=clock)
    first = signer.mint("o", "p", "k", ("a",))
    clock.advance(50)
    assert signer.mint("o", "p", "k", ("a",)) == first
    assert signer.mint("o", "p", "k", ("b",)) != first
    clock.advance(11)
    second = signer.mint("o", "p", "k", ("a",))
    assert second != first
    clock.advance(299)
    TokenVerifier(PUBLIC, clock=clock).verify(second)


@pytest.mark.parametrize("step_s", [-3600, 3600])
def test_new_tokens_are_valid_after_the_clock_was_set(step_s: float) -> None:
    clock = ManualClock()
    signer = TokenSigner(PRIVATE, clock=clock)
    signer.mint("o", "p", "k", ("a",))
    clock.step(step_s)
    token = signer.mint("o", "p", "k", ("a",))
    # A service that starts after the correction has no token in its cache.
    assert TokenVerifier(PUBLIC, clock=clock).verify(token).principal == "k"


@pytest.mark.parametrize("skew_s", [-60, -30, 30, 60])
def test_clocks_that_differ_by_a_minute_do_not_matter(skew_s: float) -> None:
    signing, verifying = ManualClock(), ManualClock()
    verifying.step(skew_s)
    verifier = TokenVerifier(PUBLIC, clock=verifying)
    token = TokenSigner(PRIVATE, clock=signing).mint("o", "p", "k", (), ttl=timedelta(minutes=1))
    for _ in range(6):
        assert verifier.verify(token).project_id == "p"
        verifying.advance(10)
    # Cached or not, the same token is accepted for the same time.
    TokenVerifier(PUBLIC, clock=verifying).verify(token)


def test_a_token_from_far_in_the_future_is_refused_and_the_clocks_are_named() -> None:
    clock = ManualClock()
    ahead = ManualClock()
    ahead.advance(120)
    token = TokenSigner(PRIVATE, clock=ahead).mint("o", "p", "k", ())
    refused(TokenVerifier(PUBLIC, clock=clock), token)
    with pytest.raises(UnauthenticatedError, match=r"120 s in the future.*clocks"):
        TokenVerifier(PUBLIC, clock=clock).verify(token)


def _unsigned(token: str) -> str:
    header = base64.urlsafe_b64encode(b'{"alg":"none","typ":"JWT"}').rstrip(b"=").decode()
    return f"{header}.{token.split('.')[1]}."


def _other_tenant(token: str) -> str:
    head, body, signature = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    claims["prj"] = "project-2"
    forged = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"{head}.{forged}.{signature}"


@pytest.mark.parametrize(
    "forge",
    [
        pytest.param(_unsigned, id="alg none"),
        pytest.param(_other_tenant, id="other tenant"),
        pytest.param(lambda token: token[:-4] + "AAAA", id="other signature"),
        pytest.param(lambda token: token + "." + token, id="five parts"),
        pytest.param(lambda _: "", id="empty"),
        pytest.param(lambda _: "ü.ü.ü", id="not ascii"),
        pytest.param(lambda _: "a" * 100_000, id="huge"),
    ],
)
def test_forged_tokens_are_refused(forge: Callable[[str], str]) -> None:
    token = TokenSigner(PRIVATE).mint("o", "p", "k", ())
    refused(TokenVerifier(PUBLIC), forge(token))


@pytest.mark.parametrize("missing", ["iss", "aud", "iat", "exp", "org", "prj", "sub", "scope"])
def test_every_claim_is_required(missing: str) -> None:
    clock = ManualClock()
    verifier = TokenVerifier(PUBLIC, clock=clock)
    kid = jwt.get_unverified_header(TokenSigner(PRIVATE).mint("o", "p", "k", ()))["kid"]
    claims = payload(clock)
    assert verifier.verify(jwt.encode(claims, PRIVATE, "EdDSA", headers={"kid": kid})).project_id
    del claims[missing]
    refused(verifier, jwt.encode(claims, PRIVATE, "EdDSA", headers={"kid": kid}))


@pytest.mark.parametrize(
    "change",
    [{"aud": "another"}, {"iss": "another"}, {"prj": 7}, {"prj": ""}, {"exp": "soon"}, {"run": 1}],
)
def test_wrong_claims_are_refused(change: dict[str, Any]) -> None:
    clock = ManualClock()
    kid = jwt.get_unverified_header(TokenSigner(PRIVATE).mint("o", "p", "k", ()))["kid"]
    token = jwt.encode({**payload(clock), **change}, PRIVATE, "EdDSA", headers={"kid": kid})
    refused(TokenVerifier(PUBLIC, clock=clock), token)


def test_the_algorithm_is_pinned() -> None:
    """A token signed with the public key as an HMAC secret is refused."""
    clock = ManualClock()
    kid = jwt.get_unverified_header(TokenSigner(PRIVATE).mint("o", "p", "k", ()))["kid"]
    secret = "0" * 64
    token = jwt.encode(payload(clock), secret, "HS256", headers={"kid": kid})
    refused(TokenVerifier(PUBLIC, clock=clock), token)


def test_tokens_of_old_and_new_keys_are_valid_during_a_rotation() -> None:
    private, public = generate_key_pair()
    old, new = TokenSigner(PRIVATE), TokenSigner(private)
    verifier = TokenVerifier([PUBLIC, public])
    old_token, new_token = (signer.mint("o", "p", "k", ()) for signer in (old, new))
    verifier.verify(old_token)
    verifier.verify(new_token)
    verifier.replace_keys(public)
    verifier.verify(new_token)
    refused(verifier, old_token)


def test_one_text_can_contain_several_keys() -> None:
    private, public = generate_key_pair()
    verifier = TokenVerifier(f"# the old one\n{PUBLIC}\n# the new one\n{public}")
    for key in (PRIVATE, private):
        verifier.verify(TokenSigner(key).mint("o", "p", "k", ()))


def test_the_cache_of_tokens_is_bounded() -> None:
    verifier = TokenVerifier(PUBLIC, cache_size=10)
    signer = TokenSigner(PRIVATE)
    tokens = [signer.mint("o", "p", f"key-{number}", ()) for number in range(30)]
    for token in tokens:
        verifier.verify(token)
    assert len(verifier._cache) == 10
    assert verifier.verify(tokens[0]).principal == "key-0"


def test_a_verified_token_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    verifier = TokenVerifier(PUBLIC)
    token = TokenSigner(PRIVATE).mint("o", "p", "k", ())
    first = verifier.verify(token)
    monkeypatch.setattr(jwt, "decode", lambda *_, **__: pytest.fail("the token is decoded again"))
    assert verifier.verify(token) is first


def test_a_token_of_the_own_process_is_not_verified_again(monkeypatch: pytest.MonkeyPatch) -> None:
    verifier = TokenVerifier(PUBLIC)
    signer = TokenSigner(PRIVATE, verifier=verifier)
    token = signer.mint("o", "p", "k", {"b", "a"}, run_id="run-1", partition="two")
    elsewhere = TokenVerifier(PUBLIC).verify(token)
    monkeypatch.setattr(jwt, "decode", lambda *_, **__: pytest.fail("the token is decoded"))
    assert verifier.verify(token) == elsewhere
    with pytest.raises(pytest.fail.Exception, match="decoded"):
        verifier.verify(_other_tenant(token))


def test_a_token_of_the_own_process_expires_and_is_revoked_with_its_key() -> None:
    clock = ManualClock()
    verifier = TokenVerifier(PUBLIC, clock=clock)
    signer = TokenSigner(PRIVATE, clock=clock, verifier=verifier)
    token = signer.mint("o", "p", "k", (), ttl=timedelta(minutes=1))
    clock.advance(121 + CLOCK_LEEWAY_S)
    refused(verifier, token)

    token = signer.mint("o", "p", "k", ())
    verifier.verify(token)
    verifier.replace_keys(generate_key_pair()[1])
    refused(verifier, token)
    refused(verifier, signer.mint("o", "p", "another", ()))


def test_the_own_process_does_not_accept_wrong_claims_either() -> None:
    clock, ahead = ManualClock(), ManualClock()
    ahead.advance(120)
    verifier = TokenVerifier(PUBLIC, clock=clock)
    refused(verifier, TokenSigner(PRIVATE, clock=ahead, verifier=verifier).mint("o", "p", "k", ()))
    refused(verifier, TokenSigner(PRIVATE, clock=clock, verifier=verifier).mint("o", "", "k", ()))
    huge = TokenSigner(PRIVATE, clock=clock, verifier=verifier).mint("o", "p", "k" * 5000, ())
    refused(verifier, huge)


def test_keys_of_another_kind_are_refused() -> None:
    other = ec.generate_private_key(ec.SECP256R1())
    private = other.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
    public = other.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    for bad in (private, "nonsense", ""):
        with pytest.raises(ValueError, match="key"):
            TokenSigner(bad)
    for bad in (public.decode(), PRIVATE, "nonsense", ""):
        with pytest.raises(ValueError, match="key"):
            TokenVerifier(bad)


def test_the_public_key_is_derived_from_the_private_key() -> None:
    assert public_key_of(PRIVATE) == PUBLIC


def test_a_bound_key_is_accepted_by_its_methods_only() -> None:
    private, public = generate_key_pair()
    bound = BoundKeys(TokenVerifier(public), frozenset({"/a.A/Index"}))
    authenticator = TokenAuthenticator(TokenVerifier(PUBLIC), [bound])
    tokens = {
        "everyday": TokenSigner(PRIVATE).mint("o", "p-1", "k", ["read"]),
        "bound": TokenSigner(private).mint("o", "p-2", "worker", ["read"]),
        "unknown": TokenSigner(generate_key_pair()[0]).mint("o", "p-3", "k", ["read"]),
        "none": "a.b.c",
    }

    async def accepted(path: str) -> set[str]:
        names = set()
        for name, token in tokens.items():
            try:
                method = ServedMethod(path, "a.A", RpcShape(False, False))
                await authenticator.authenticate(method, {"authorization": f"Bearer {token}"})
            except UnauthenticatedError:
                continue
            names.add(name)
        return names

    assert asyncio.run(accepted("/a.A/Index")) == {"everyday", "bound"}
    assert asyncio.run(accepted("/a.A/Drop")) == {"everyday"}


def test_a_token_without_a_project_carries_scopes_of_an_organization_only() -> None:
    signer, verifier = TokenSigner(PRIVATE), TokenVerifier(PUBLIC)
    caller = verifier.verify(signer.mint("o", "", "k", OrganizationScope))
    assert (caller.organization_id, caller.project_id) == ("o", "")
    for scopes in ([], ["read"], ["organization.admin", "write"], ["files"]):
        refused(verifier, signer.mint("o", "", "k", scopes))
