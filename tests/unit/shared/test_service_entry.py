from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from child_processes import SOURCE_PATH
from strata.shared import service_entry

# The collector belongs to all code of a process, so it is watched in a separate one.
SERVICE = """
import gc, sys

walked = []
gc.callbacks.append(lambda phase, _: walked.append(phase))
held = [[number] for number in range(100_000)]
during_import = len(walked)

def main():
    print(during_import, gc.isenabled(), gc.get_freeze_count() > len(held), sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("program", "module"),
    [
        ("/app/bin/strata-recall", "strata.recall.main"),
        ("strata-tool-runner", "strata.tool_runner.main"),
    ],
)
def test_a_program_runs_the_service_in_its_name(
    monkeypatch: pytest.MonkeyPatch, program: str, module: str
) -> None:
    modules: list[str] = []
    monkeypatch.setattr(service_entry, "run_module", modules.append)
    monkeypatch.setattr(sys, "argv", [program])
    service_entry.main()
    assert modules == [module]


@pytest.mark.child_process
def test_a_service_is_imported_without_garbage_collections(tmp_path: Path) -> None:
    (tmp_path / "service_of_test.py").write_text(SERVICE)
    done = subprocess.run(
        [sys.executable, "-m", "strata.shared.service_entry", "service_of_test", "check"],
        env={"PYTHONPATH": f"{SOURCE_PATH}:{tmp_path}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "0 True True ['check']", done.stderr
