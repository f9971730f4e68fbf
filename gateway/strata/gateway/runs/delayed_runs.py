"""Runs whose time of start is still to come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class DelayedRunStore(Protocol):
    """Runs whose time of start is still to come."""

    async def delayed_of_principal(self, project_id: str, principal: str) -> Sequence[str]:
        """Returns the ids of those that act with the scopes of a key."""
        ...
