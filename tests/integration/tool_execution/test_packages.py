"""Tools with packages through the API; the packages come from a folder of wheels."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from integration.tool_execution.conftest import Tools, UnusedSandbox
from integration.tool_execution.registry_calls import result_of, run, upsert
from strata.api.tool_execution.v1 import tool_service_pb2 as pb
from strata.protocol.errors import InvalidArgumentError, NotFoundError, Reason, UnimplementedError
from strata.tool_execution.custom.executor import SandboxRunner
from strata.tool_execution.custom.secrets import SecretBox
from strata.tool_execution.domain.tools import Effect, OwnDefinition, Tool, ToolError, ToolType
from wheel_files import make_wheel

pytestmark = pytest.mark.asyncio(loop_scope="session")

SOURCE = '''
import tidal
import moonlib

def tide(day: int) -> list:
    """Tells the tide.

    Args:
        day: Of the month.
    """
    return [day, tidal.VERSION, moonlib.VERSION]
'''


@pytest.fixture(autouse=True, scope="module")
def _made(wheels: Path) -> None:
    make_wheel(wheels, "moonlib", "1.0")
    make_wheel(wheels, "tidal", "1.0", needs=["moonlib"])
    make_wheel(wheels, "tidal", "2.0", needs=["moonlib"])


async def test_a_tool_finds_its_packages_and_their_dependencies(
    registry: Any, tools: Tools
) -> None:
    tool = await upsert(registry, SOURCE, pip_requirements=["tidal<2"])
    assert list(tool.pip_requirements) == ["tidal<2"]
    ran = await registry.RunTool(pb.RunToolRequest(tool_id=tool.id, arguments_json='{"day": 3}'))
    assert result_of(ran) == (True, [3, "1.0", "1.0"])
    again = await upsert(registry, SOURCE, pip_requirements=["tidal"])
    assert again.version != tool.version
    ended = await run(tools, "tide", day=4)
    assert json.loads(ended.tool_return.content)["message"] == [4, "2.0", "1.0"]


async def test_packages_that_cannot_be_had_are_a_violation_and_nothing_is_stored(
    registry: Any,
) -> None:
    for wanted in (["nosuchpackage"], ["tidal>5"], ["tidal==1", "moonlib==7"]):
        with pytest.raises(InvalidArgumentError) as caught:
            await upsert(registry, SOURCE, pip_requirements=wanted)
        assert caught.value.reason is Reason.INVALID_FIELD
        (violation,) = caught.value.violations
        assert violation.field == "pip_requirements"
        assert wanted[-1][:5] in violation.description
        assert "/packages" not in violation.description
    with pytest.raises(NotFoundError):
        await registry.GetTool(pb.GetToolRequest(name="tide"))


async def test_a_source_distribution_is_never_built(
    registry: Any, wheels: Path, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    setup = f"open({str(ran)!r}, 'w')\nfrom setuptools import setup\nsetup(name='evil')"
    _sdist(wheels, "evil", setup)
    with pytest.raises(InvalidArgumentError, match="evil"):
        await upsert(registry, SOURCE, pip_requirements=["evil"])
    assert not ran.exists()


async def test_without_packages_such_tools_are_refused_and_do_not_run() -> None:
    own = OwnDefinition("tool-1", "def f(): pass", "f", pip_requirements=("a",))
    tool = Tool("f", "d", ToolType.CUSTOM, {}, Effect.UNDECLARED, own=own)
    runner = SandboxRunner(UnusedSandbox(), SecretBox(None))
    with pytest.raises(UnimplementedError) as caught:
        await runner.prepare(tool)
    assert caught.value.metadata["what"] == "pip_requirements"
    with pytest.raises(ToolError, match="switched off"):
        await runner.run(tool, {}, {})


def _sdist(folder: Path, name: str, setup: str) -> None:
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    with tarfile.open(folder / f"{name}-1.0.tar.gz", "w:gz") as archive:
        for place, text in (("setup.py", setup), ("PKG-INFO", metadata)):
            member = tarfile.TarInfo(f"{name}-1.0/{place}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
