"""Removing a folder that hostile code filled."""

from __future__ import annotations

import os
from pathlib import Path

from strata.tool_runner.sandbox import scratch


def test_deep_unreadable_and_linked_folders_are_removed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    folder = scratch.make(tmp_path, os.getuid())
    assert Path(folder).stat().st_mode & 0o777 == 0o700
    Path(folder, "link").symlink_to(kept)
    os.mkfifo(f"{folder}/pipe")
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(folder)
        for _ in range(1_200):
            Path("d" * 100).mkdir()
            Path("e").mkdir()
            Path("e/f").write_text("x")
            Path("e").chmod(0)
            os.chdir("d" * 100)
    finally:
        os.fchdir(here)
        os.close(here)
    Path(folder).chmod(0)
    scratch.remove(folder)
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]
    assert (kept / "file").read_text() == "x"
