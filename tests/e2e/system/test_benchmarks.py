"""The benchmark programs run against the current Strata."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(360)

ROOT = Path(__file__).parents[3]
SUITES = ("plain_turn", "compile_big", "custom_tools")
TURNS = ("benchmarks", "--quick", *(word for suite in SUITES for word in ("--only", suite)))
MEMORY = ("benchmarks", "--quick", "--only", "memory_agents")
SCALE = (
    *("benchmarks.scale", "--passages=600", "--messages=600", "--agents=3", "--searches=3"),
    *("--stored-agents=60", "--talking-agents=5"),
)


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        pytest.param(
            TURNS,
            ("Compile, 20 blocks, 5 files", "custom tool, 8 at once"),
            id="turns",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            MEMORY,
            ("turn beside 50 memory agents at work",),
            id="memory agents",
            marks=pytest.mark.slow,
        ),
        pytest.param(SCALE, ("search of 600 passages",), id="scale", marks=pytest.mark.slow),
    ],
)
async def test_a_short_run_completes(arguments: tuple[str, ...], lines: tuple[str, ...]) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *arguments),
        cwd=ROOT,
        env={**os.environ, "STRATA_LOCAL_DEMO": "off"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, complaints = await process.communicate()
    assert process.returncode == 0, complaints.decode()[-3_000:]
    for line in lines:
        assert line in printed.decode()
