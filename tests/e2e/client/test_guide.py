"""The program of the guide runs."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

import strata
from doubles.script import Call, Reply, say
from world import World

pytestmark = pytest.mark.asyncio(loop_scope="session")

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "python.md"
ROOTS = os.pathsep.join(str(Path(each).parent) for each in strata.__path__)


async def test_the_program_of_the_guide_runs(world: World, tmp_path: Path) -> None:
    program, *_ = re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    file = tmp_path / "program.py"
    file.write_text(program)
    world.model.script(
        Reply(calls=(Call("convert", {"amount": 11, "source": "usd"}),)), say("Ten euros.")
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(file),
        env={
            "PYTHONPATH": ROOTS,
            "PATH": os.defpath,
            "STRATA_ADDRESS": world.address,
            "STRATA_API_KEY": world.key,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, err.decode()
    told = out.decode().splitlines()
    assert told[:2] == ["tried: 10.0", "Ten euros."]
    assert told[2].startswith("missing: ")
    assert world.model.requests[-1].answered
