"""Shared code for clouds that serve Anthropic's messages API.

Clouds do not list models for a key. They sign each request, which needs additional packages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from anthropic import AsyncStream
from anthropic.types import RawMessageStreamEvent

from strata.agent_loop.domain.model.chat import ChatModel, ModelSettings
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind
from strata.agent_loop.models.anthropic_api.messages import AnthropicChatModel
from strata.agent_loop.models.refused_parameters import RefusalMemory, Refusals
from strata.agent_loop.models.streaming import RetryPolicy
from strata.shared.redaction import Redactor


class CloudConnection(ABC):
    """The connections to a cloud. See `EndpointConnection`."""

    errors: tuple[type[Exception], ...] = (RuntimeError,)
    """Exceptions for credentials that are missing, wrong or cannot be refreshed."""

    def __init__(self) -> None:
        self._refusals: RefusalMemory[Refusals] = RefusalMemory()

    @abstractmethod
    def client(self, api_key: str) -> Any:
        """Returns a client that signs with a key; an empty key uses the machine's credentials.

        Raises:
            ModelError: The key is malformed, or packages are missing.
        """

    @abstractmethod
    def secrets(self, api_key: str) -> dict[str, str]:
        """Returns the secret parts of a key, by name."""

    def chat_model(self, settings: ModelSettings, retry: RetryPolicy) -> ChatModel:
        """See `EndpointConnection.chat_model`."""
        redactor = Redactor(self.secrets(settings.api_key))
        return _CloudModel(
            self.client(settings.api_key), settings, retry, redactor, self._refusals, self.errors
        )

    async def list_models(self, api_key: str) -> list[tuple[str, int | None]]:
        """Returns no models: clouds list them in another API, with other permissions.

        Raises:
            ModelError: See `client`.
        """
        self.client(api_key)
        return []

    async def has_model(self, api_key: str, name: str) -> bool:
        """Returns True, since only a request shows whether the model exists."""
        return True


def missing_package(cloud: str, package: str, extra: str) -> ModelError:
    """Returns the error for a cloud whose packages are not installed."""
    return ModelError(
        ModelErrorKind.NOT_CONFIGURED,
        f"Models at {cloud} need the package {package}, which is not installed. Install it beside"
        f" Strata with: pip install 'strata-agents[{extra}]', and start Strata again.",
    )


class _CloudModel(AnthropicChatModel):
    """One model of a cloud."""

    def __init__(
        self,
        client: Any,
        settings: ModelSettings,
        retry: RetryPolicy,
        redactor: Redactor,
        refusals: RefusalMemory[Refusals],
        errors: tuple[type[Exception], ...],
    ) -> None:
        super().__init__(client, settings, retry, headers={}, redactor=redactor, refusals=refusals)
        self._errors = errors

    async def _send(self, body: dict[str, Any]) -> AsyncStream[RawMessageStreamEvent]:
        try:
            return await super()._send(body)
        except self._errors as error:
            message = f"The request could not be signed: {error}"
            raise ModelError(ModelErrorKind.AUTHENTICATION, message) from error
