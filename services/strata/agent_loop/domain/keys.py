"""Keys of model endpoints that a project, or one of its agents, brings along."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SealedKey:
    """A key as it is stored.

    Attributes:
        provider: Name of the endpoint.
        agent_id: The agent that it is for; empty for every agent of the project.
        sealed: The key, sealed for its project, agent and endpoint.
    """

    provider: str
    agent_id: str
    sealed: bytes = field(repr=False)


class ModelKeyStore(Protocol):
    """The sealed keys of the calling project."""

    async def put(self, key: SealedKey) -> None:
        """Stores a key in place of the one before.

        Raises:
            NotFoundError: AGENT_NOT_FOUND.
        """
        ...

    async def delete(self, provider: str, agent_id: str) -> bool:
        """Deletes a key; says whether there was one.

        Raises:
            NotFoundError: AGENT_NOT_FOUND.
        """
        ...

    async def of_project(self) -> Sequence[SealedKey]:
        """Returns the keys that are for every agent."""
        ...


def in_force(keys: Sequence[SealedKey]) -> dict[str, SealedKey]:
    """Returns the keys that are used, by endpoint: an agent's own before its project's."""
    return {key.provider: key for key in sorted(keys, key=lambda key: bool(key.agent_id))}
