"""SDKs are imported off the event loop, since an import takes a second."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from child_processes import SOURCE_PATH

pytestmark = pytest.mark.child_process

_FIRST_TURN = """
import asyncio, sys, threading

threads = {}

class Watch:
    @staticmethod
    def find_spec(name, path=None, target=None):
        threads.setdefault(name, threading.current_thread())

sys.meta_path.insert(0, Watch)
from strata.agent_loop.domain.agent.agents import ModelConfig
from strata.agent_loop.models.factory import ModelFactory
from strata.agent_loop.models.registry import ModelEndpoint, ModelRegistry
from strata.agent_loop.models.provider import ModelProvider

async def main():
    address = "http://127.0.0.1:9/v1"
    endpoint = ModelEndpoint("x", "openai", base_url=address, models=("m",))
    async with ModelFactory() as factory:
        provider = ModelProvider(ModelRegistry([endpoint]), factory)
        config = ModelConfig(handle="x/m")
        await asyncio.gather(*(provider.bind(config) for _ in range(3)))

asyncio.run(main())
print(threads["strata.agent_loop.models.openai_api.chat_completions"] is threading.main_thread())
"""


def test_the_first_turn_imports_the_sdk_off_the_event_loop() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FIRST_TURN],
        env={**os.environ, "PYTHONPATH": SOURCE_PATH},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.split() == ["False"], done.stderr
