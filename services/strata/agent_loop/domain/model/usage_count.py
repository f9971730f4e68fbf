"""The function that counts the tokens of model replies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from strata.shared.usage import Usage

Count = Callable[[Usage, str], Awaitable[None]]
"""Counts the tokens of a reply as soon as it has arrived; arguments: usage, handle of the model."""


async def uncounted(usage: Usage, handle: str) -> None:
    """Counts nothing."""
