"""Errors that a call must raise."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest

from strata.protocol.errors import FailedPreconditionError, Reason, StrataError


async def failure(
    attempt: Awaitable[Any],
    kind: type[StrataError] = StrataError,
    reason: Reason | None = None,
) -> StrataError:
    """Returns the error of a call; asserts its type and, unless None, its reason."""
    with pytest.raises(kind) as caught:
        await attempt
    assert reason is None or caught.value.reason is reason
    return caught.value


async def exceeded_window(attempt: Awaitable[Any]) -> StrataError:
    """Returns the error of a call that would make memory too large for the context window."""
    return await failure(attempt, FailedPreconditionError, Reason.CONTEXT_WINDOW_EXCEEDED)
