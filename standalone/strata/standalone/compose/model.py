"""The chat model of a local Strata: a configured one, a local model server, or the demo."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from strata.agent_loop.models.presets.table import PRESETS, preset_of_product
from strata.agent_loop.settings import AgentLoopSettings, EndpointSettings
from strata.standalone.chat_model.choice import (
    LOCAL_DEMO_ID,
    ConfiguredProvider,
    ModelChoice,
    Source,
    choose,
)
from strata.standalone.chat_model.discovery import LocalServer, UsualAddress, discover, models_of
from strata.standalone.chat_model.local_model import LocalChatModel
from strata.standalone.chat_model.progress import LocalModelError, Progress
from strata.standalone.chat_model.settings import LocalDemoSettings

# A laptop's processor can take minutes for the first prompt.
_LOCAL_TIMEOUT_S = 600.0

USUAL_ADDRESSES = tuple(
    UsualAddress(preset.title, preset.base_url) for preset in PRESETS.values() if preset.local
)
"""Where the local servers that have a preset listen by default, best first."""


@dataclass(frozen=True, slots=True)
class ChatModelSettings:
    """The chat model of a local Strata, as settings for the agent loop.

    Attributes:
        choice: The choice, and a sentence about it for the person.
        endpoints: Endpoints beside those that the settings name.
        default_model: Handle for agents that name none; empty to leave it to the settings.
        process: Pid of the demo model, if it runs.
    """

    choice: ModelChoice
    endpoints: tuple[EndpointSettings, ...] = ()
    default_model: str = ""
    process: int | None = None


async def prepare_model(
    settings: AgentLoopSettings,
    demo: LocalDemoSettings,
    stack: AsyncExitStack,
    report: Callable[[Progress], None],
) -> ChatModelSettings:
    """Chooses the chat model, and fetches and starts the demo model if it is chosen.

    Args:
        settings: The configured settings.
        demo: Whether and how the demo model may be used.
        stack: Stops the demo model.
        report: Called with the progress of the demo model, possibly from a thread.
    """
    default = await _default_handle(settings)
    configured = _configured(settings, default)
    servers = [] if configured else await discover(USUAL_ADDRESSES)
    choice = choose(configured, servers, demo.local_demo)
    if choice.source is Source.CONFIGURED:
        return ChatModelSettings(choice, default_model=default)
    if choice.source is Source.LOCAL_SERVER:
        return _of_server(choice, servers[0])
    if choice.source is not Source.LOCAL_DEMO:
        return ChatModelSettings(choice)
    model = LocalChatModel(
        demo.local_demo_cache,
        mode=demo.local_demo,
        model_url=demo.local_demo_url,
        context_tokens=demo.local_demo_context_tokens,
    )
    try:
        await model.ensure(report)
        await model.start(report)
    except LocalModelError as error:
        return ChatModelSettings(choose([], [], demo.local_demo, error.message))
    stack.push_async_callback(model.stop)
    return _of_demo(choice, model)


async def _default_handle(settings: AgentLoopSettings) -> str:
    """The handle that the settings name, else the first model that the first endpoint lists."""
    registry = settings.registry()
    if registry.default_handle or not registry.endpoints:
        return registry.default_handle
    first = registry.endpoints[0]
    models = await models_of(first.base_url, first.api_key) if first.base_url else ()
    return first.handle(models[0]) if models else ""


def _configured(settings: AgentLoopSettings, default: str) -> list[ConfiguredProvider]:
    return [
        ConfiguredProvider(
            endpoint.name,
            default.partition("/")[2] if default.startswith(f"{endpoint.name}/") else "its models",
            endpoint.base_url or None,
        )
        for endpoint in settings.registry().endpoints
    ]


def _of_server(choice: ModelChoice, server: LocalServer) -> ChatModelSettings:
    name = server.product.lower().replace(" ", "-").replace(".", "-")
    endpoint = EndpointSettings(
        name=name,
        preset=preset_of_product(server.product),
        base_url=server.base_url,
        models=server.models,
        first_event_timeout_s=_LOCAL_TIMEOUT_S,
        total_timeout_s=_LOCAL_TIMEOUT_S,
    )
    return ChatModelSettings(choice, (endpoint,), f"{name}/{choice.model}")


def _of_demo(choice: ModelChoice, model: LocalChatModel) -> ChatModelSettings:
    endpoint = EndpointSettings(
        name=LOCAL_DEMO_ID,
        base_url=model.base_url,
        api_key=model.api_key,
        models=(model.model_id,),
        context_window=model.context_tokens,
        temperature=0.0,
        structured_tools=True,
        images=False,
        first_event_timeout_s=_LOCAL_TIMEOUT_S,
        total_timeout_s=_LOCAL_TIMEOUT_S,
    )
    return ChatModelSettings(choice, (endpoint,), f"{LOCAL_DEMO_ID}/{model.model_id}", model.pid)
