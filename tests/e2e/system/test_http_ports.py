"""The ports for HTTP and for metrics of a local Strata."""

from __future__ import annotations

import json
from pathlib import Path

import httpx2
import pytest

from doubles.model_server import ModelServer
from doubles.script import say
from live import LiveStrata
from scraping import Scrape, scrape
from strata.shared.metric_names import DATABASE_POOL_SIZE, MODEL_CALLS, RPC_REQUESTS
from strata.standalone.compose.services import ALL_SERVICES, SERVICES
from strata.standalone.data_folder import DataFolder
from whole_system import System

STORING = {spec.name for spec in SERVICES}
EXECUTE_RUN = "/strata.api.agent_loop.v1.TurnService/ExecuteRun"


async def turn_over_http(strata: LiveStrata, system: System) -> str:
    """Has a turn at the announced port; returns the reply."""
    runtime = DataFolder(strata.data).running()
    assert runtime is not None
    assert f"HTTP: {runtime.http_url}" in strata.log
    body = {
        "model": (await system.make_agent()).name,
        "messages": [{"role": "user", "content": "Hello."}],
    }
    async with httpx2.AsyncClient(base_url=f"{runtime.http_url}/v1", timeout=60.0) as client:
        headers = {"x-api-key": system.key}
        response = await client.post("/chat/completions", json=body, headers=headers)
    return str(response.json()["choices"][0]["message"]["content"])


async def scrapes(strata: LiveStrata) -> dict[str, Scrape]:
    """Returns the metrics of each process by name."""
    listed = json.loads((strata.data / "metrics-targets.json").read_text())
    return {
        entry["labels"]["process"]: await scrape(f"http://{target}")
        for entry in listed
        for target in entry["targets"]
    }


def services_with_connections(read: Scrape) -> set[str]:
    return {sample.labels["service"] for sample in read.matching(DATABASE_POOL_SIZE)}


@pytest.mark.asyncio
@pytest.mark.parametrize("split", [False, True], ids=["one process", "split"])
async def test_turn_over_http_is_in_the_metrics_of_its_processes(
    open_folder: Path, split: bool
) -> None:
    async with ModelServer() as model:
        model.script(say("Hello over HTTP."))
        strata = LiveStrata(open_folder / "data", model, split=split)
        try:
            system = await strata.start()
            assert await turn_over_http(strata, system) == "Hello over HTTP."
            await system.channel.close()
            read = await scrapes(strata)
            assert await strata.stop() == 0
        finally:
            await strata.close()
    if split:
        assert read.keys() == {spec.name for spec in ALL_SERVICES}
        assert all(services_with_connections(read[name]) == {name} for name in STORING)
    else:
        assert read.keys() == {"strata"}
        assert services_with_connections(read["strata"]) == STORING
    loop = read["agent_loop" if split else "strata"]
    assert loop.total(MODEL_CALLS, outcome="ok") >= 1
    assert loop.total(RPC_REQUESTS, method=EXECUTE_RUN) == 1
