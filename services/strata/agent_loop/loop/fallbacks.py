"""The model chain of an agent: its own model, then the fallback models."""

from __future__ import annotations

from dataclasses import replace

from strata.agent_loop.domain.agent.agents import Agent
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind
from strata.agent_loop.domain.ports import BoundModel, Models

# Errors for which a fallback model is asked. A refused key, a missing model and a malformed request
# are faults of the configuration, which a fallback would hide.
_OF_THE_PROVIDER = frozenset(
    {
        ModelErrorKind.RATE_LIMITED,
        ModelErrorKind.UNAVAILABLE,
        ModelErrorKind.TIMEOUT,
        ModelErrorKind.CUT_OFF,
        ModelErrorKind.INVALID_REPLY,
        ModelErrorKind.REFUSED,
    }
)


def may_fail_over(error: ModelError) -> bool:
    """Returns whether another model is asked after this error of the agent's own model."""
    return error.kind in _OF_THE_PROVIDER or error.out_of_credit


class ModelChain:
    """The models that may answer in a turn. A fallback model is bound when it is needed.

    Attributes:
        current: The model that is asked.

    Args:
        models: The configured models.
        agent: The agent.
        first: Its own model.
    """

    def __init__(self, models: Models, agent: Agent, first: BoundModel) -> None:
        self.current = first
        self._own = first.settings.handle
        self._models = models
        self._agent = agent
        # An agent without its own model uses the default model, which may be a fallback too.
        self._remaining = [h for h in agent.model.fallback_models if h != self._own]

    @property
    def handle(self) -> str:
        """Handle of the model that is asked."""
        return self.current.settings.handle

    @property
    def is_at_fallback(self) -> bool:
        """Whether the model that is asked is not the agent's own."""
        return self.handle != self._own

    @property
    def has_next(self) -> bool:
        """Whether there is a further model."""
        return bool(self._remaining)

    @property
    def upcoming(self) -> str:
        """Handle of the next model; there must be one."""
        return self._remaining[0]

    async def advance(self) -> None:
        """Switches to the next model.

        Raises:
            ModelError: The model cannot be bound; it is skipped.
        """
        handle = self._remaining.pop(0)
        # Efforts differ between models: a fallback uses the default of its provider.
        config = replace(
            self._agent.model,
            handle=handle,
            reasoning_effort=None,
            fallback_models=tuple(self._remaining),
        )
        self.current = await self._models.bind(config, self._agent.model_keys, as_fallback=True)

    async def advance_to(self, handle: str) -> bool:
        """Switches to the model with this handle, if it is one of the fallbacks.

        Returns:
            Whether the model changed.
        """
        if handle == self.handle or handle not in self._remaining:
            return False
        del self._remaining[: self._remaining.index(handle)]
        try:
            await self.advance()
        except ModelError:
            return False
        return True
