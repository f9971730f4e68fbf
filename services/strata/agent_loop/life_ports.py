"""What the life of an agent needs from outside, beyond what a turn needs, as protocols."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from strata.agent_loop.domain.agents import Agent
from strata.agent_loop.domain.keys import SealedKey
from strata.agent_loop.domain.messages import Message, Window
from strata.agent_loop.loop.ports import Archival, Memory, MemoryView, Models, PromptLimit
from strata.agent_loop.prompt_limits import LimitedMemory


class MemoryLife(Memory, LimitedMemory, Protocol):
    """Core memory in the life of an agent."""

    async def files_to_close(self, agent: Agent, view: MemoryView, max_bytes: int) -> list[str]:
        """Returns the names of the files that `close_files` would close; closes none."""
        ...

    async def prepare(
        self,
        agent: Agent,
        blocks: Sequence[Any],
        block_ids: Sequence[str],
        limit: PromptLimit | None,
    ) -> Sequence[Any]:
        """Makes and attaches the first blocks; repeating it returns them.

        Raises:
            FailedPreconditionError: BLOCK_LIMIT_EXCEEDED; CONTEXT_WINDOW_EXCEEDED if all of them
                together exceed the limit.
        """
        ...

    async def release(self, agent_id: str) -> None:
        """Takes everything from an agent."""
        ...


class RecallLife(Protocol):
    """Recall memory in the life of an agent."""

    async def open_window(
        self, conversation_id: str, agent_id: str, messages: Sequence[Message]
    ) -> None:
        """Makes a window; one that is there stays as it is."""
        ...

    async def get_window(self, conversation_id: str) -> Window:
        """Returns a window."""
        ...

    async def fork_window(self, source_id: str, conversation_id: str, until_id: str) -> None:
        """Makes a window as another was at a message; one that is there stays as it is."""
        ...

    async def release(self, agent_id: str) -> None:
        """Deletes all messages of an agent."""
        ...


class ArchivalLife(Archival, Protocol):
    """Archival memory in the life of an agent."""

    async def prepare(self, agent_id: str) -> None:
        """Makes an agent known; repeating it is success."""
        ...

    async def release(self, agent_id: str) -> None:
        """Takes all archives from an agent and deletes its own."""
        ...


class ModelCatalog(Models, Protocol):
    """The configured models, and which handles can be one of them."""

    def check(self, handle: str, field: str = "model.handle") -> None:
        """Refuses a handle that no configured endpoint can have; an empty one passes.

        Raises:
            InvalidArgumentError: INVALID_FIELD; it names what is known.
        """
        ...

    async def check_listed(
        self, handle: str, keys: Sequence[SealedKey] = (), field: str = "model.handle"
    ) -> None:
        """Refuses a handle whose provider says that it has no such model; an empty one passes.

        Raises:
            InvalidArgumentError: INVALID_FIELD; it names models that the provider has.
        """
        ...
