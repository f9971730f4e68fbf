"""`strata up` announces its HTTP port, in one process and with one per service."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from doubles.model_server import ModelServer
from doubles.script import say
from live import LiveStrata
from strata.standalone.data_folder import DataFolder


@pytest.mark.child_process
@pytest.mark.timeout(240)
@pytest.mark.parametrize("split", [False, True], ids=["single", "split"])
async def test_announced_port_answers(open_folder: Path, split: bool) -> None:
    async with ModelServer() as model:
        model.script(say("Hello over HTTP."))
        strata = LiveStrata(open_folder / "data", model, split=split)
        try:
            system = await strata.start()
            runtime = DataFolder(strata.data).running()
            assert runtime is not None
            assert f"HTTP: {runtime.http_url}" in strata.log
            agent = await system.make_agent()
            async with httpx2.AsyncClient(base_url=f"{runtime.http_url}/v1") as client:
                reply = await client.post(
                    "/chat/completions",
                    json={
                        "model": agent.name,
                        "messages": [{"role": "user", "content": "Hello."}],
                    },
                    headers={"x-api-key": system.key},
                    timeout=60.0,
                )
            assert reply.json()["choices"][0]["message"]["content"] == "Hello over HTTP."
            await system.channel.close()
            assert await strata.stop() == 0
        finally:
            await strata.close()
