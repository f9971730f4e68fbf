"""What Anthropic's messages API has in common at the clouds that serve it.

They list no models for a key and sign each request, by packages that are installed for them alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from anthropic import AsyncStream
from anthropic.types import RawMessageStreamEvent

from strata.agent_loop.models.anthropic import AnthropicChatModel
from strata.agent_loop.models.domain import ChatModel, ModelSettings
from strata.agent_loop.models.errors import ModelError, ModelErrorKind
from strata.agent_loop.models.refusals import RefusalMemory, Refusals
from strata.agent_loop.models.streaming import RetryPolicy
from strata.shared.redaction import Redactor


class CloudConnection(ABC):
    """The connections to a cloud. See `Connection`."""

    errors: tuple[type[Exception], ...] = (RuntimeError,)
    """What is raised where credentials are missing, wrong or cannot be refreshed."""

    def __init__(self) -> None:
        self._refusals: RefusalMemory[Refusals] = RefusalMemory()

    @abstractmethod
    def client(self, api_key: str) -> Any:
        """Returns a client that signs with a key; with an empty one as the machine may.

        Raises:
            ModelError: The key is none of this cloud, or packages are missing.
        """

    @abstractmethod
    def secrets(self, api_key: str) -> dict[str, str]:
        """Returns what of a key must not be shown, by name."""

    def chat_model(self, settings: ModelSettings, retry: RetryPolicy) -> ChatModel:
        """See `Connection.chat_model`."""
        redactor = Redactor(self.secrets(settings.api_key))
        return _CloudModel(
            self.client(settings.api_key), settings, retry, redactor, self._refusals, self.errors
        )

    async def list_models(self, api_key: str) -> list[tuple[str, int | None]]:
        """Says nothing of models: clouds list them elsewhere, for other rights.

        Raises:
            ModelError: See `client`.
        """
        self.client(api_key)
        return []

    async def has_model(self, api_key: str, name: str) -> bool:
        """Says yes, since only a request can tell."""
        return True


def missing_package(cloud: str, package: str, extra: str) -> ModelError:
    """Returns the error of a cloud whose packages are not installed."""
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
