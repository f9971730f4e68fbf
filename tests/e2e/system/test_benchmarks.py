"""The benchmarks still run: what they ask of Strata, Strata does."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(360)

ROOT = Path(__file__).parents[3]
TURNS = ("benchmarks", "--quick", "--only", "plain_turn", "--only", "compile_big")
TOOLS = ("benchmarks", "--quick", "--only", "custom_tools")
MEMORY = ("benchmarks", "--quick", "--only", "memory_agents")
SCALE = ("benchmarks.scale", "--passages=600", "--messages=600", "--agents=3", "--searches=3")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (TURNS, "Compile, 20 blocks, 5 files"),
        (TOOLS, "custom tool, 8 at once"),
        (MEMORY, "turn beside 50 memory agents at work"),
        (SCALE, "search of 600 passages"),
    ],
    ids=["turns", "tools", "memory agents", "scale"],
)
async def test_a_short_run_completes(arguments: tuple[str, ...], line: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *arguments),
        cwd=ROOT,
        env={**os.environ, "STRATA_LOCAL_DEMO": "off"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, complaints = await process.communicate()
    assert process.returncode == 0, complaints.decode()[-3_000:]
    assert line in printed.decode()
