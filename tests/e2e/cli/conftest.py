"""Fixtures: a scripted gateway, and the command line connected to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from typer.testing import CliRunner

from e2e.cli.scripted import KEY, ScriptedGateway
from strata.cli.main import app


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Coroutine[Any, Any, Outcome]]


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
    """Runs a command in a thread with an event loop of its own, without a terminal."""
    runner = CliRunner()

    async def run(*arguments: str, typed: str | None = None) -> Outcome:
        result = await asyncio.to_thread(
            runner.invoke, app, list(arguments), input=typed, catch_exceptions=False
        )
        return Outcome(result.exit_code, result.stdout, result.stderr)

    return run
