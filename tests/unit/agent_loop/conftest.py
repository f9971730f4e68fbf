"""Pauses of the agent loop are short in its unit tests."""

from __future__ import annotations

import pytest

_PAUSES = (
    "domain.retries._FIRST_PAUSE_S",
    "loop.model_requests._FIRST_DELAY",
    "loop.nested_calls.FIRST_PAUSE_S",
    "loop.step_calls.FIRST_PAUSE_S",
)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes repetitions follow each other at once; pauses double, so they stay short."""
    for name in _PAUSES:
        monkeypatch.setattr(f"strata.agent_loop.{name}", 0.001)
