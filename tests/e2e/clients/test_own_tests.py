"""The tests that the clients in TypeScript and Go have in their own languages."""

from __future__ import annotations

import shutil

import pytest

from example_programs import CLIENTS, output_of

_NODE = shutil.which("node")
_TYPESCRIPT = CLIENTS / "typescript"
_GO = CLIENTS / "go" / "bin" / "strata.test"

pytestmark = pytest.mark.child_process


@pytest.mark.skipif(
    _NODE is None or not (_TYPESCRIPT / "dist").exists(), reason="needs Node, and `make clients`"
)
async def test_the_tests_in_typescript_pass() -> None:
    assert _NODE is not None
    output = await output_of({}, _NODE, "--test", str(_TYPESCRIPT / "tests"))
    assert "# fail 0" in output
    assert "# pass 0" not in output


@pytest.mark.skipif(not _GO.exists(), reason="needs Go, and `make clients`")
async def test_the_tests_in_go_pass() -> None:
    output = await output_of({}, str(_GO), "-test.v")
    assert output.endswith("PASS\n")
    assert "--- PASS: TestAskReturnsTheTextsOfTheAgent" in output
