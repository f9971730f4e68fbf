"""Runs the test suites of the clients in TypeScript, Go and Java."""

from __future__ import annotations

import shutil

import pytest

from example_programs import CLIENTS, java_command, output_of

_NODE = shutil.which("node")
_TYPESCRIPT = CLIENTS / "typescript"
_GO = CLIENTS / "go" / "bin" / "strata.test"
_JAVA = CLIENTS / "java" / "target" / "test-classes" / "strata" / "client" / "StrataTest.class"

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


@pytest.mark.skipif(
    shutil.which("java") is None or not _JAVA.exists(), reason="needs Java, and `make clients`"
)
async def test_the_tests_in_java_pass() -> None:
    program, *options = java_command("org.junit.platform.console.ConsoleLauncher", "execute")
    output = await output_of(
        {}, program, *options, "--details=summary", "--select-class", "strata.client.StrataTest"
    )
    assert " 0 tests failed " in output
    assert " 0 tests successful " not in output
