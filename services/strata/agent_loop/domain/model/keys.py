"""API keys for model endpoints that belong to a project or to one of its agents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SealedKey:
    """A stored key.

    Attributes:
        provider: Name of the endpoint.
        agent_id: The agent that uses it; empty for all agents of the project.
        sealed: The key, encrypted for its project, agent and endpoint.
    """

    provider: str
    agent_id: str
    sealed: bytes = field(repr=False)


class ModelKeyStore(Protocol):
    """The sealed keys of the calling project."""

    async def put(self, key: SealedKey) -> None:
        """Stores a key and replaces the previous one.

        Raises:
            NotFoundError: AGENT_NOT_FOUND.
        """
        ...

    async def delete(self, provider: str, agent_id: str) -> bool:
        """Deletes a key; returns whether it existed.

        Raises:
            NotFoundError: AGENT_NOT_FOUND.
        """
        ...

    async def of_project(self) -> Sequence[SealedKey]:
        """Returns the keys for all agents of the project."""
        ...


def in_force(keys: Sequence[SealedKey]) -> dict[str, SealedKey]:
    """Returns the keys to use, by endpoint; an agent's own key wins over its project's."""
    return {key.provider: key for key in sorted(keys, key=lambda key: bool(key.agent_id))}
