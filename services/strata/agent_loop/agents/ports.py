"""Protocols of the services that `lifecycle` uses, in addition to the ports of a turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from strata.agent_loop.agents.prompt_limits import LimitedMemory
from strata.agent_loop.domain.agent.agents import Agent
from strata.agent_loop.domain.conversation.messages import Message, Window
from strata.agent_loop.domain.model.keys import SealedKey
from strata.agent_loop.domain.ports import Archival, Memory, MemoryView, Models, PromptLimit


class LifecycleMemory(Memory, LimitedMemory, Protocol):
    """Core memory: operations for creating and deleting agents."""

    async def files_to_close(self, agent: Agent, view: MemoryView, max_bytes: int) -> list[str]:
        """Returns the names of the files that `close_files` would close."""
        ...

    async def prepare(
        self,
        agent: Agent,
        blocks: Sequence[Any],
        block_ids: Sequence[str],
        limit: PromptLimit | None,
    ) -> Sequence[Any]:
        """Creates and attaches the first blocks; a repetition returns them.

        Raises:
            FailedPreconditionError: BLOCK_LIMIT_EXCEEDED; CONTEXT_WINDOW_EXCEEDED if all blocks
                together exceed the limit.
        """
        ...

    async def release(self, agent_id: str) -> None:
        """Detaches all blocks and folders from an agent, and deletes its own."""
        ...


class LifecycleRecall(Protocol):
    """Recall memory: operations for creating and deleting agents."""

    async def open_window(
        self, conversation_id: str, agent_id: str, messages: Sequence[Message]
    ) -> None:
        """Creates a window; an existing window stays unchanged."""
        ...

    async def get_window(self, conversation_id: str) -> Window:
        """Returns a window."""
        ...

    async def fork_window(self, source_id: str, conversation_id: str, until_id: str) -> None:
        """Creates a copy of a window up to a message; an existing window stays unchanged."""
        ...

    async def release(self, agent_id: str) -> None:
        """Deletes all messages of an agent."""
        ...


class LifecycleArchival(Archival, Protocol):
    """Archival memory: operations for creating and deleting agents."""

    async def prepare(self, agent_id: str) -> None:
        """Registers an agent; repeating it succeeds."""
        ...

    async def release(self, agent_id: str) -> None:
        """Detaches all archives from an agent and deletes its own."""
        ...


class ModelCatalog(Models, Protocol):
    """The configured models, with checks of handles."""

    def check(self, handle: str, field: str = "model.handle") -> None:
        """Refuses a handle that matches no configured endpoint; an empty one passes.

        Raises:
            InvalidArgumentError: INVALID_FIELD; the message lists the known handles.
        """
        ...

    async def check_listed(
        self, handle: str, keys: Sequence[SealedKey] = (), field: str = "model.handle"
    ) -> None:
        """Refuses a handle if its provider does not have the model; an empty one passes.

        Raises:
            InvalidArgumentError: INVALID_FIELD; the message lists models of the provider.
        """
        ...
