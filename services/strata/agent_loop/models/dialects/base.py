"""Interfaces of wire protocols: a description without an SDK (`Dialect`), and the adapter."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

from strata.agent_loop.domain.model.chat import ChatModel, EndpointType, ImagePart, ModelSettings
from strata.agent_loop.models.dialects.key_forms import plain_key
from strata.agent_loop.models.streaming import RetryPolicy


class EndpointConnection(Protocol):
    """The open connections to one address, shared by everything that calls a model there.

    Keys come with the calls, so that projects and agents with their own keys share it.
    """

    def chat_model(self, settings: ModelSettings, retry: RetryPolicy) -> ChatModel:
        """Returns a model at this address, without a request to the server."""
        ...

    async def list_models(self, api_key: str) -> list[tuple[str, int | None]]:
        """Returns the names of the models with their context window in tokens, None if unknown.

        Raises:
            ModelError: The endpoint did not answer.
        """
        ...

    async def has_model(self, api_key: str, name: str) -> bool:
        """Returns whether the endpoint has a model, which need not be in its list.

        Raises:
            ModelError: The endpoint did not answer.
        """
        ...

    async def close(self) -> None:
        """Closes the connections."""
        ...


class Adapter(Protocol):
    """The module that implements a wire protocol. It may import an SDK, which takes a second."""

    def connect(self, base_url: str) -> EndpointConnection:
        """Returns connections to an address; an empty one means the provider's own."""
        ...


def _any_address(base_url: str) -> None:
    """Accepts every address, also an empty one."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """Describes a wire protocol, without importing its SDK.

    Attributes:
        name: The name in settings: the `type` of an endpoint.
        adapter: Full name of the module that implements it, an `Adapter`.
        bytes_per_token: Bytes of text per token, before an exact count of a model is known.
        image_tokens: Returns the tokens of an image in a prompt.
        line_numbers: Whether its models are shown memory with line numbers, if the type of the
            agent uses them.
        check_address: Raises a ValueError with the problem of a base URL.
        read_key: Returns a key in its stored form; raises a ValueError that describes valid keys.
    """

    name: EndpointType
    adapter: str
    bytes_per_token: float
    image_tokens: Callable[[ImagePart], int]
    line_numbers: bool = False
    check_address: Callable[[str], None] = _any_address
    read_key: Callable[[str], str] = plain_key

    def load(self) -> Adapter:
        """Imports the adapter; the first call may take a second or more."""
        return cast("Adapter", importlib.import_module(self.adapter))
