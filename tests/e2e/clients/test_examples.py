"""The example programs of the clients, which are shown in their guides."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from example_programs import (
    CLIENTS,
    EXPECTED_LINES,
    code_of_guide,
    java_command,
    run_five_tasks,
)
from whole_system import System


@dataclass(frozen=True)
class Language:
    """A language with a client.

    Attributes:
        name: The name of its folder and its guide.
        tool: The program that builds it.
        fence: Name of the language in code blocks of the guide.
        sources: The examples, in the order of the guide.
        built: The result of `make clients` for the first one.
        command: The command that runs it.
        whole: Whether the guide has no other code in this language.
    """

    name: str
    tool: str
    fence: str
    sources: tuple[str, ...]
    built: Path
    command: tuple[str, ...]
    whole: bool = True

    def why_not(self) -> str:
        """Returns why the example cannot run; empty if it can."""
        if shutil.which(self.tool) is None:
            return f"needs {self.tool}"
        return "" if self.built.exists() else "needs `make clients`"


_PYTHON = CLIENTS / "python" / "examples" / "five_tasks.py"
_TYPESCRIPT = CLIENTS / "typescript" / "dist-examples" / "five_tasks.js"
_GO = CLIENTS / "go" / "bin" / "fivetasks"
LANGUAGES = (
    Language(
        "typescript",
        "node",
        "ts",
        ("examples/five_tasks.ts", "examples/browser.ts"),
        _TYPESCRIPT,
        ("node", str(_TYPESCRIPT)),
    ),
    Language(
        "python",
        sys.executable,
        "python",
        ("examples/five_tasks.py",),
        _PYTHON,
        (sys.executable, str(_PYTHON)),
        whole=False,
    ),
    Language("go", "go", "go", ("examples/fivetasks/main.go",), _GO, (str(_GO),)),
    Language(
        "java",
        "mvn",
        "java",
        ("examples/strata/examples/FiveTasks.java",),
        CLIENTS / "java" / "target" / "test-classes" / "strata" / "examples" / "FiveTasks.class",
        java_command("strata.examples.FiveTasks"),
    ),
)

languages = pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.name)


@languages
def test_the_guide_shows_the_examples(language: Language) -> None:
    sources = [(CLIENTS / language.name / source).read_text("utf-8") for source in language.sources]
    code = code_of_guide(f"{language.name}.md", language.fence)
    assert "\n".join(sources) in code
    assert not language.whole or code == "\n".join(sources)


@pytest.mark.child_process
@pytest.mark.asyncio(loop_scope="session")
@languages
async def test_the_five_example_tasks_produce_the_expected_output(
    system: System, language: Language
) -> None:
    if reason := language.why_not():
        pytest.skip(reason)
    program, *arguments = language.command
    done = await run_five_tasks(system, shutil.which(program) or program, *arguments)
    assert done.lines == EXPECTED_LINES
    assert done.connections >= 2
    assert "She lives in Lisbon." in done.system
    assert done.clipboard == {"text": "Lisbon to Porto, 9:30"}
