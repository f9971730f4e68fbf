"""Model keys: which one is used, and what happens if one cannot be decrypted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from strata.agent_loop.domain.agent.agents import ModelConfig
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind, naming_key
from strata.agent_loop.domain.model.keys import SealedKey
from strata.agent_loop.models.factory import ModelFactory
from strata.agent_loop.models.keyring import Keyring
from strata.agent_loop.models.provider import ModelProvider
from strata.agent_loop.models.registry import ModelEndpoint, ModelRegistry
from strata.agent_loop.settings import AgentLoopSettings
from strata.protocol.errors import FailedPreconditionError, Reason
from strata.shared.context import Caller, RequestContext, use
from strata.shared.secrets import Envelope, generate_master_key, read_master_keys

OLD, NEW = generate_master_key(), generate_master_key()
ENDPOINTS = [
    ModelEndpoint("openai", "openai", "http://127.0.0.1:9/v1", "of-the-settings"),
    ModelEndpoint("free", "openai", "http://127.0.0.1:9/v1"),
]


@pytest.fixture(autouse=True)
def _project() -> Iterator[None]:
    with signed_in("project-1"):
        yield


def signed_in(project: str) -> AbstractContextManager[object]:
    return use(RequestContext(caller=Caller("org-1", project, "key-1")))


def keyring(*master_keys: str) -> Keyring:
    return Keyring(Envelope(read_master_keys(master_keys)))


async def key_of(ring: Keyring, handle: str, *keys: SealedKey) -> tuple[str, str]:
    async with ModelFactory() as factory:
        provider = ModelProvider(ModelRegistry(ENDPOINTS), factory, ring)
        settings = (await provider.bind(ModelConfig(handle), keys)).settings
    assert not settings.api_key or settings.api_key not in repr(settings)
    return settings.api_key, settings.key_owner


async def test_the_nearest_key_is_used_and_its_owner_known() -> None:
    ring = keyring(OLD)
    shared, own = ring.seal("openai", "", "shared"), ring.seal("openai", "agent-1", "of-its-own")
    assert await key_of(ring, "openai/m") == (
        "of-the-settings",
        'the key for "openai" in the settings of the server',
    )
    assert await key_of(ring, "openai/m", shared) == ("shared", 'the project\'s key for "openai"')
    for keys in ([shared, own], [own, shared]):
        assert await key_of(ring, "openai/m", *keys) == (
            "of-its-own",
            'the agent\'s own key for "openai"',
        )
    assert (await key_of(ring, "free/m", shared, own))[0] == ""


async def test_a_key_that_cannot_be_opened_stops_its_own_endpoint_only() -> None:
    lost = keyring(OLD).seal("openai", "", "shared")
    for ring in (keyring(NEW), Keyring()):
        with pytest.raises(ModelError) as caught:
            await key_of(ring, "openai/m", lost)
        assert caught.value.kind is ModelErrorKind.AUTHENTICATION
        assert "strata models key set openai" in caught.value.message
        assert await key_of(ring, "free/m", lost)
        assert ring.open_all([lost]) == {}


async def test_a_key_sealed_for_another_project_cannot_be_opened() -> None:
    ring = keyring(OLD)
    sealed = ring.seal("openai", "", "shared")
    with signed_in("project-2"), pytest.raises(ModelError):
        await key_of(ring, "openai/m", sealed)


async def test_new_master_key_encrypts_and_old_one_decrypts() -> None:
    sealed = keyring(OLD).seal("openai", "", "shared")
    both = keyring(NEW, OLD)
    assert (await key_of(both, "openai/m", sealed))[0] == "shared"
    again = both.seal("openai", "", "shared")
    assert (await key_of(keyring(NEW), "openai/m", again))[0] == "shared"


def test_without_a_master_key_nothing_can_be_stored() -> None:
    with pytest.raises(FailedPreconditionError, match="MASTER_KEYS") as caught:
        Keyring().seal("openai", "", "key")
    assert caught.value.reason is Reason.MODEL_NOT_CONFIGURED


def test_settings_read_master_keys_from_both_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert AgentLoopSettings().envelope() is None
    sealed = Envelope(read_master_keys([OLD])).seal(b"x", b"")
    monkeypatch.setenv("STRATA_AGENT_LOOP_MASTER_KEYS", f'["{NEW}", "{OLD}"]')
    settings = AgentLoopSettings()
    assert OLD not in repr(settings)
    file = tmp_path / "master.keys"
    file.write_text(f"{NEW}\n{OLD}\n")
    for configured in (settings, AgentLoopSettings(master_keys_file=file)):
        envelope = configured.envelope()
        assert envelope is not None
        assert envelope.open(sealed, b"") == b"x"


@pytest.mark.parametrize("kind", list(ModelErrorKind))
def test_the_owner_of_the_key_is_named_only_in_authentication_errors(kind: ModelErrorKind) -> None:
    named = naming_key(ModelError(kind, "No.", status=401), "the project's key")
    assert ("the project's key" in named.message) is (kind is ModelErrorKind.AUTHENTICATION)
    assert (named.kind, named.status) == (kind, 401)
