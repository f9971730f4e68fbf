"""Fixtures of a Strata in child processes, which tests kill."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from faults.live import Live, ModelThread
from live import still_running
from prepared_folder import copy_prepared_folder


@pytest.fixture(scope="session")
def model() -> Iterator[ModelThread]:
    """The chat model of every Strata under test."""
    with ModelThread() as thread:
        yield thread


@pytest_asyncio.fixture(params=[False], ids=["single"])
async def live(
    request: pytest.FixtureRequest, open_folder: Path, prepared_folder: Path, model: ModelThread
) -> AsyncIterator[Live]:
    """A running Strata for one test; parametrize indirectly with True for split mode."""
    copy_prepared_folder(prepared_folder, open_folder / "data")
    strata = Live(open_folder / "data", model.url, split=request.param)
    await strata.start()
    family = strata.tree()
    yield strata
    if strata.process.poll() is None:
        family = strata.tree()
        await strata.stop()
    assert await still_running(family, 10.0) == []
