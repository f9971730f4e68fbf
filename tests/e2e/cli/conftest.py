"""Fixtures: a scripted gateway, and the command line connected to it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from command_line import Run, run_command
from e2e.cli.scripted import KEY, ScriptedGateway


@pytest_asyncio.fixture
async def gateway() -> AsyncIterator[ScriptedGateway]:
    scripted = ScriptedGateway()
    with scripted.port:
        await scripted.start()
        yield scripted
        await scripted.stop()


@pytest.fixture
def environment(gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATA_ADDRESS", gateway.address)
    monkeypatch.setenv("STRATA_API_KEY", KEY)


@pytest.fixture
def strata(environment: None) -> Run:
    """Runs a command, connected to the gateway."""
    return run_command
