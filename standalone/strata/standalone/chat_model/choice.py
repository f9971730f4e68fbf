"""Chooses the model for chat, and describes the choice in one sentence for the user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from strata.standalone.chat_model.discovery import LocalServer
from strata.standalone.chat_model.manifest import LOCAL_DEMO
from strata.standalone.chat_model.settings import LocalDemoMode

LOCAL_DEMO_ID = "local-demo"

_WAYS_OUT = (
    "Set OPENAI_API_KEY or ANTHROPIC_API_KEY, or start Ollama, LM Studio, llama.cpp or vLLM "
    "on its usual port, and start Strata again."
)


class Source(StrEnum):
    """The source of the chat model, best first."""

    CONFIGURED = "configured"
    LOCAL_SERVER = "local_server"
    LOCAL_DEMO = "local_demo"
    NONE = "none"


@dataclass(frozen=True)
class ConfiguredProvider:
    """A provider that the settings name.

    Attributes:
        name: The provider's name, such as `openai`.
        model: The model that agents use by default.
        base_url: The server's address; None for the provider's own.
    """

    name: str
    model: str
    base_url: str | None = None


@dataclass(frozen=True)
class ModelChoice:
    """The model that chat uses.

    Attributes:
        source: The source of the model.
        sentence: Description for the user, with what to expect of the model.
        provider: The configured provider's name, or the local product's; empty for none.
        model: The model's name at its server; empty for none.
        base_url: The server's address. None for a provider's own address, for none, and for the
            local demo model until it has been started.
    """

    source: Source
    sentence: str
    provider: str = ""
    model: str = ""
    base_url: str | None = None


def choose(
    configured: Sequence[ConfiguredProvider],
    servers: Sequence[LocalServer],
    local_demo: LocalDemoMode,
    local_demo_problem: str | None = None,
) -> ModelChoice:
    """Chooses: a configured provider, a local server, the local demo model, or nothing.

    Args:
        configured: Providers named in the settings; the first one is used.
        servers: Local servers found by `discover`; the first one is used.
        local_demo: Whether the demo model may be used.
        local_demo_problem: Why the demo model cannot be used on this machine, if known.
    """
    if configured:
        return _of_provider(configured[0])
    if servers:
        return _of_server(servers[0])
    if local_demo is LocalDemoMode.OFF:
        return _nothing("the local demo model is turned off (STRATA_LOCAL_DEMO=off)")
    if local_demo_problem is not None:
        return _nothing(local_demo_problem)
    return _of_demo()


def _of_provider(provider: ConfiguredProvider) -> ModelChoice:
    where = f" at {provider.base_url}" if provider.base_url else ""
    return ModelChoice(
        Source.CONFIGURED,
        f"Chat uses {provider.model} of the configured provider {provider.name}{where}.",
        provider=provider.name,
        model=provider.model,
        base_url=provider.base_url,
    )


def _of_server(server: LocalServer) -> ModelChoice:
    other_models = len(server.models) - 1
    more = f" It offers {other_models} more; agents can name another one." if other_models else ""
    return ModelChoice(
        Source.LOCAL_SERVER,
        f"No provider is configured. Chat uses {server.models[0]} of the local model server at "
        f"{server.base_url} (the usual port of {server.product}).{more}",
        provider=server.product,
        model=server.models[0],
        base_url=server.base_url,
    )


def _of_demo() -> ModelChoice:
    return ModelChoice(
        Source.LOCAL_DEMO,
        "No provider is configured and no local model server answers. Chat uses "
        f"{LOCAL_DEMO_ID}: {LOCAL_DEMO.title}, run on this machine. It is very small: it shows "
        f"that memory works, and it is often wrong. {_WAYS_OUT}",
        provider=LOCAL_DEMO_ID,
        model=LOCAL_DEMO_ID,
    )


def _nothing(reason: str) -> ModelChoice:
    return ModelChoice(
        Source.NONE,
        "No chat model configured: memory and search work, chat does not. No provider is "
        f"configured, no local model server answers, and {reason}. {_WAYS_OUT}",
    )
