# ruff: noqa: E501 - sources of tools
"""Malicious packages: their code runs only in calls, and their files stay in their folder."""

from __future__ import annotations

import asyncio
import stat
import zipfile
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from uv import find_uv_bin

from integration.sandbox.attacks import source
from integration.sandbox.jails import Worker
from strata.shared.sandbox import tool_interpreter
from strata.tool_execution.domain.packages import PackagesError
from strata.tool_execution.packages import Builder, Environments
from strata.tool_runner.sandbox.program import landlock
from wheel_files import make_wheel


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user can read."""
    with TemporaryDirectory(dir="/var/tmp") as path:
        Path(path).chmod(0o755)
        (Path(path) / "wheels").mkdir()
        yield Path(path)


async def build(place: Path, *names: str) -> Path:
    builder = Builder(find_uv_bin(), tool_interpreter(), wheels=place / "wheels")
    environments = Environments(place / "root", builder, unused=timedelta(days=30))
    try:
        return Path(await environments.folder(names))
    finally:
        await environments.close()


def entries(path: Path) -> set[Path]:
    return {entry for entry in path.rglob("*") if "root" not in entry.relative_to(path).parts[:1]}


ESCAPED = Path("/var/tmp/strata-escaped.py")
ESCAPES = ["../escaped.py", "../../escaped.py", "x/../../escaped.py", "/var/tmp/strata-escaped.py",
           "evil-1.0.data/data/../../../escaped.py", "evil-1.0.data/scripts/../../escaped",
           "evil-1.0.data/purelib/../../../escaped.py", "..\\..\\escaped.py"]  # fmt: skip


async def test_no_file_of_a_wheel_is_written_outside_of_its_folder(place: Path) -> None:
    for number, escape in enumerate(ESCAPES):
        name = f"evil{number}"
        make_wheel(place / "wheels", name, files={escape.replace("evil-", f"{name}-"): "x = 1"})
    before = entries(place)
    results = await asyncio.gather(
        *(build(place, f"evil{n}") for n in range(len(ESCAPES))), return_exceptions=True
    )
    assert all(isinstance(result, Path | PackagesError) for result in results), results
    assert entries(place) == before
    assert ESCAPED.name not in {entry.name for entry in ESCAPED.parent.iterdir()}
    kept = {result for result in results if isinstance(result, Path)}
    assert set((place / "root").iterdir()) == {place / "root" / ".locks", *kept}


async def test_modes_links_and_start_files_of_a_wheel_have_no_effect(place: Path) -> None:
    ran = place / "ran"
    code = f"open({str(ran)!r}, 'w').close()\nimport sys\nsys.modules['json'] = None\n"
    files: dict[str, str | bytes] = dict.fromkeys(
        ("sitecustomize.py", "usercustomize.py", "json.py", "os.py", "re/__init__.py", "ast.py",
         "program/__init__.py", "program/tool.py", "encodings/__init__.py", "asyncio.py", "tool.py"),
        code,
    )  # fmt: skip
    files["evil.pth"] = "import os; " + code.splitlines()[0]
    files["evil-1.0.data/scripts/env"] = "#!/bin/sh\necho owned\n"
    files["evil-1.0.dist-info/entry_points.txt"] = "[console_scripts]\nuv = evil:VERSION\n"
    wheel = make_wheel(place / "wheels", "evil", files=files)
    with zipfile.ZipFile(wheel, "a") as archive:
        for name, mode, content in (
            ("suid", stat.S_IFREG | 0o6777, "#!/bin/sh\n"),
            ("link", stat.S_IFLNK | 0o777, "/etc/passwd"),
            ("pipe", stat.S_IFIFO | 0o666, ""),
            ("node", stat.S_IFCHR | 0o666, ""),
        ):
            entry = zipfile.ZipInfo(name)
            entry.external_attr = mode << 16
            archive.writestr(entry, content)
    folder = await build(place, "evil")
    assert not ran.exists()
    for path in (folder, *folder.rglob("*")):
        mode = path.lstat().st_mode
        assert not mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IWOTH), path
        assert stat.S_ISREG(mode) or stat.S_ISDIR(mode), path
    for restricted in (False, True):
        if restricted and not landlock.abi():
            continue
        start = partial(
            Worker, other_user=False, restricted=restricted, environments=str(place / "root")
        )
        worker = await asyncio.to_thread(start)
        try:
            result = await asyncio.to_thread(worker.value, source(LOOK), None, packages=str(folder))
        finally:
            await asyncio.to_thread(worker.close)
        assert result == {"evil": "1.0", "stdlib": [], "written": "stopped", "env": "the machine"}
    assert not ran.exists()


LOOK = """
def f():
    import evil, importlib, shutil
    names = ("json", "os", "re", "ast", "encodings", "asyncio", "io", "socket", "sitecustomize" )
    place = os.path.dirname(evil.__file__)
    taken = [n for n in names[:-1] if importlib.import_module(n).__file__.startswith(place)]
    written = attempt(lambda: open(os.path.join(place, "evil.py"), "a"))[0]
    program = shutil.which("env") or ""
    return {"evil": evil.VERSION, "stdlib": taken, "written": written,
            "env": "the package" if program.startswith(place) else "the machine"}
"""
