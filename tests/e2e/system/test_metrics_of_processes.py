"""Which metrics a local Strata serves, and where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from doubles.model_server import ModelServer
from doubles.script import say
from live import LiveStrata
from scraping import Scrape, scrape
from strata.shared.metric_names import DATABASE_POOL_SIZE, MODEL_CALLS, RPC_REQUESTS
from strata.standalone.compose.services import ALL_SERVICES, SERVICES

STORING = {spec.name for spec in SERVICES}
EXECUTE_RUN = "/strata.api.agent_loop.v1.TurnService/ExecuteRun"


async def scrapes_after_a_turn(strata: LiveStrata, model: ModelServer) -> dict[str, Scrape]:
    """Returns the metrics of each process by name."""
    system = await strata.start()
    model.script(say("Hello."))
    await system.send(await system.make_agent(), "Hello.")
    await system.channel.close()
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
async def test_every_process_serves_the_metrics_of_its_services(
    open_folder: Path, split: bool
) -> None:
    async with ModelServer() as model:
        strata = LiveStrata(open_folder / "data", model, split=split)
        try:
            read = await scrapes_after_a_turn(strata, model)
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
