"""A handle resolves to settings, or to an error with advice."""

import pytest

from strata.agent_loop.domain.model.errors import ModelErrorKind, UnknownModelError
from strata.agent_loop.models.registry import ModelEndpoint, ModelRegistry

OPEN = ModelEndpoint("router", "openai", "http://r/v1", "key")
CLOSED = ModelEndpoint("claude", "anthropic", models=("opus", "haiku"))
LOCAL = ModelEndpoint(
    "local-demo",
    "openai",
    models=("qwen",),
    context_window=8192,
    temperature=0.0,
    structured_tools=True,
)
REGISTRY = ModelRegistry([OPEN, CLOSED, LOCAL])


def test_the_name_of_a_model_may_contain_slashes() -> None:
    settings = REGISTRY.resolve("router/meta/llama")
    assert (settings.handle, settings.model) == ("router/meta/llama", "meta/llama")
    assert (settings.base_url, settings.api_key) == ("http://r/v1", "key")
    assert settings.context_window == 32_000
    assert settings.temperature == 0.7


def test_an_agent_overrides_the_settings_it_sets() -> None:
    settings = REGISTRY.resolve(
        "local-demo/qwen", api_key="mine", temperature=None, context_window=4096
    )
    assert (settings.api_key, settings.temperature) == ("mine", 0.0)
    assert (settings.context_window, settings.structured_tools) == (4096, True)


def test_the_default_model_is_the_first_listed_one() -> None:
    assert REGISTRY.resolve().handle == "claude/opus"
    assert ModelRegistry([OPEN, CLOSED], "router/x").resolve().handle == "router/x"


@pytest.mark.parametrize("handle", ["nobody/x", "claude/sonnet", "claude", "claude/", "/x"])
def test_an_unknown_handle_lists_the_known_ones(handle: str) -> None:
    with pytest.raises(UnknownModelError) as caught:
        REGISTRY.resolve(handle)
    assert caught.value.kind is ModelErrorKind.NOT_CONFIGURED
    assert caught.value.known == ("router/*", "claude/opus", "claude/haiku", "local-demo/qwen")
    assert "claude/opus" in str(caught.value)


def test_missing_configuration_has_a_clear_error() -> None:
    with pytest.raises(UnknownModelError, match="No chat model is configured"):
        ModelRegistry([]).resolve()


@pytest.mark.parametrize("name", ["", "a/b"])
def test_a_bad_endpoint_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a name"):
        ModelRegistry([ModelEndpoint(name, "openai")])


def test_two_endpoints_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="same name"):
        ModelRegistry([OPEN, OPEN])


def test_keys_are_not_shown() -> None:
    assert "'key'" not in repr(OPEN) + repr(REGISTRY.resolve("router/x"))
