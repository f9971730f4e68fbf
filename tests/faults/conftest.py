"""Fixtures that run Strata in child processes, which tests kill.

A start takes 4 s of processor time, in split mode (one process for each service) 13 s. Therefore
tests share one running Strata for each mode. Each test creates its own agents; processes that it
killed are running again before the next test begins. Tests with many faults start their own Strata.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from faults.live import Live, ModelThread
from faults.surviving import until_answered
from faults.webhook_receiver import WebhookReceiver
from prepared_folder import copy_prepared_folder


@pytest.fixture(scope="session")
def model() -> Iterator[ModelThread]:
    """The chat model of every Strata under test."""
    with ModelThread() as thread:
        yield thread


@pytest.fixture(scope="session")
def receiver() -> Iterator[WebhookReceiver]:
    """A receiver of webhooks that every shared Strata may reach."""
    with WebhookReceiver() as receiver:
        yield receiver


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def lives(
    session_folder: Path, prepared_folder: Path, model: ModelThread, receiver: WebhookReceiver
) -> AsyncIterator[dict[bool, Live]]:
    """A Strata as one process and one with a process for each service (True), not started yet."""
    folders = {split: session_folder / ("split" if split else "single") for split in (False, True)}
    for folder in folders.values():
        copy_prepared_folder(prepared_folder, folder)
    lives = {
        split: Live(folder, model.url, split=split, environment=receiver.environment)
        for split, folder in folders.items()
    }
    yield lives
    for strata in lives.values():
        if strata.runs:
            await strata.stop_whole()


@pytest_asyncio.fixture(params=[False], ids=["single"])
async def live(request: pytest.FixtureRequest, lives: dict[bool, Live]) -> Live:
    """A running Strata that tests share; parametrize indirectly with True for split mode."""
    strata = lives[request.param]
    if strata.runs:
        await _wait_for_services(strata)
    else:
        await strata.start()
    strata.skip_log()
    return strata


@pytest_asyncio.fixture
async def split(
    open_folder: Path, prepared_folder: Path, model: ModelThread
) -> AsyncIterator[Live]:
    """A running Strata for one test, with a process for each service."""
    copy_prepared_folder(prepared_folder, open_folder / "data")
    strata = Live(open_folder / "data", model.url, split=True)
    await strata.start()
    yield strata
    await strata.stop_whole()


async def _wait_for_services(strata: Live) -> None:
    """Waits until the services that the previous test killed are available again."""
    async with strata.client() as client:
        agent = await until_answered(client.new_agent)
        # This turn calls all of them but the sandbox of custom tools.
        while not (await until_answered(lambda: client.send(agent.id, "archive it"))).ended_well:
            pass
