"""Sends the usage of model calls outside of runs to the gateway, which records it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from strata.agent_loop.domain.model.usage_count import Count
from strata.protocol.errors import StrataError
from strata.protocol.status import to_status
from strata.shared.call_usage import CallUsage
from strata.shared.usage import Usage


@asynccontextmanager
async def reported_usage(context: Any) -> AsyncIterator[Count]:
    """Sends the usage that is counted within the block with the answer, also with an error.

    Args:
        context: The context of the call.
    """
    spent = CallUsage()

    async def count(usage: Usage, _handle: str) -> None:
        nonlocal spent
        spent = spent.plus(usage)

    try:
        yield count
    except StrataError as error:
        if spent.model_calls:
            await context.abort_with_status(to_status(error, trailing=spent.to_metadata()))
        raise
    context.set_trailing_metadata((*(context.trailing_metadata() or ()), *spent.to_metadata()))
