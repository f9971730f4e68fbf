"""Environments of packages: built once, whole or not at all, bounded, and removed when unused."""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from uv import find_uv_bin

from strata.shared.event_loop import loop_factory
from strata.shared.sandbox import tool_interpreter
from strata.tool_execution.domain.packages import PackagesError
from strata.tool_execution.packages import Builder, BuildLimits, Environments
from strata.tool_execution.packages.requirements import key_of, normal
from wheel_files import make_wheel


class Counting(Builder):
    """Environments that count the builds of all instances."""

    built = 0

    async def build(self, *args: Any) -> Path:
        type(self).built += 1
        return await super().build(*args)


@pytest.fixture
def builder(tmp_path: Path) -> Counting:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name in ("alpha", "beta"):
        make_wheel(wheels, name)
    Counting.built = 0
    return Counting(find_uv_bin(), tool_interpreter(), wheels=wheels)


@pytest_asyncio.fixture
async def environments(tmp_path: Path, builder: Builder) -> AsyncIterator[Environments]:
    made = Environments(tmp_path / "root", builder, unused=timedelta(days=30))
    yield made
    await made.close()


def left(environments: Environments) -> list[str]:
    """Returns the entries of the root apart from the locks."""
    return sorted(path.name for path in environments.root.iterdir() if path.name != ".locks")


def has(folder: str, name: str) -> bool:
    """Returns whether a file is in an environment."""
    return Path(folder, name).exists()


def check_readable(root: Path, folder: Path) -> None:
    """Asserts that another user can read an environment and its modules are compiled."""
    for path in (root, folder, *folder.rglob("*.py*")):
        mode = path.stat().st_mode
        assert mode & (0o005 if stat.S_ISDIR(mode) else 0o004), path
    assert list(folder.glob(f"__pycache__/alpha.{sys.implementation.cache_tag}.pyc"))


def age(path: str | Path, days: float) -> None:
    then = time.time() - days * 86_400
    os.utime(path, (then, then))


async def test_concurrent_requests_build_an_environment_once(
    environments: Environments, tmp_path: Path, builder: Builder
) -> None:
    # Another instance has its own locks, like another process.
    other = Environments(tmp_path / "root", builder, unused=timedelta(days=30))
    asking = [provider.folder(["alpha"]) for provider in (environments, other) for _ in range(4)]
    folders = set(await asyncio.gather(*asking))
    assert len(folders) == 1
    folder = Path(folders.pop())
    assert Counting.built == 1
    assert (folder / "alpha.py").exists()
    assert not (folder / "beta.py").exists()
    assert left(environments) == [folder.name]
    assert await environments.folder(["Alpha"]) == str(folder)
    assert Counting.built == 1
    await other.close()


async def test_every_user_can_read_it_and_its_modules_are_compiled(
    environments: Environments,
) -> None:
    old = os.umask(0o077)
    try:
        folder = Path(await environments.folder(["alpha"]))
    finally:
        os.umask(old)
    check_readable(environments.root, folder)


async def test_leftovers_of_a_dead_builder_are_removed_and_rebuilt(
    environments: Environments,
) -> None:
    key = key_of(normal(["alpha"]))
    half = environments.root / f".building-{key}-0000"
    (half / "packages").mkdir(parents=True)
    (half / "packages" / "alpha.py").write_text("half of it")
    folder = Path(await environments.folder(["alpha"]))
    assert "VERSION" in (folder / "alpha.py").read_text()
    assert left(environments) == [key]


async def test_second_process_waits_for_the_build_of_the_first(
    environments: Environments,
) -> None:
    lock = environments.root / ".locks" / key_of(normal(["alpha"]))
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        asking = asyncio.create_task(environments.folder(["alpha"]))
        await environments.folder(["beta"])
        assert not asking.done()
        assert Counting.built == 1
    await asking
    assert Counting.built == 2


async def test_cancelled_request_does_not_cancel_the_build(environments: Environments) -> None:
    asking = asyncio.create_task(environments.folder(["alpha"]))
    while not Counting.built:
        await asyncio.sleep(0.001)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await environments.folder(["alpha"])
    assert Counting.built == 1


async def test_a_failed_build_leaves_nothing_and_can_be_repeated(
    environments: Environments, tmp_path: Path
) -> None:
    with pytest.raises(PackagesError, match="gamma") as caught:
        await environments.folder(["gamma"])
    assert not caught.value.temporary
    assert "\u2570" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value).replace(str(tmp_path / "wheels"), "")
    assert left(environments) == []
    make_wheel(tmp_path / "wheels", "gamma")
    assert has(await environments.folder(["gamma"]), "gamma.py")


@pytest.mark.parametrize(
    ("limits", "problem", "temporary"),
    [
        (BuildLimits(bytes=1 << 20), "larger than 1 MiB", False),
        (BuildLimits(files=3), "more than 3 files", False),
        (BuildLimits(seconds=0.001), "longer than", True),
    ],
)
async def test_a_build_over_a_limit_fails_and_the_limit_is_named(
    tmp_path: Path, builder: Builder, limits: BuildLimits, problem: str, temporary: bool
) -> None:
    # The wheel is small when packed and large when unpacked.
    many = {f"large/{n}.txt": b"0" * 500_000 for n in range(10)}
    make_wheel(tmp_path / "wheels", "large", files=many)
    bounded = replace(builder, limits=limits)
    environments = Environments(tmp_path / "root", bounded, unused=timedelta(days=30))
    with pytest.raises(PackagesError, match=problem) as caught:
        await environments.folder(["large"])
    assert caught.value.temporary is temporary
    assert left(environments) == []
    await environments.close()


async def test_a_missing_package_index_is_not_reported_as_wrong_requirements(
    tmp_path: Path, builder: Builder
) -> None:
    away = replace(builder, wheels=tmp_path / "nowhere")
    environments = Environments(tmp_path / "root", away, unused=timedelta(days=30))
    with pytest.raises(PackagesError, match="could not be fetched") as caught:
        await environments.folder(["alpha"])
    assert caught.value.temporary
    await environments.close()


async def test_the_password_of_the_index_is_not_shown(tmp_path: Path, builder: Builder) -> None:
    says = tmp_path / "says"
    says.write_text('#!/bin/sh\necho "$UV_DEFAULT_INDEX at https://u:other@host/x" >&2\nexit 2\n')
    says.chmod(0o755)
    url = "https://somebody:hunter2@index.test/simple"
    telling = replace(builder, uv=str(says), wheels=None, index_url=url)
    environments = Environments(tmp_path / "root", telling, unused=timedelta(days=30))
    with pytest.raises(PackagesError) as caught:
        await environments.folder(["alpha"])
    assert "the index at https://host/x" in str(caught.value)
    await environments.close()


async def test_uv_inherits_the_lock_of_the_build(tmp_path: Path, builder: Builder) -> None:
    says = tmp_path / "says"
    says.write_text("#!/bin/sh\nls -l /proc/$$/fd >&2\nexit 2\n")
    says.chmod(0o755)
    telling = replace(builder, uv=str(says))
    environments = Environments(tmp_path / "root", telling, unused=timedelta(days=30))
    with pytest.raises(PackagesError, match=f".locks/{key_of(normal(['alpha']))}"):
        await environments.folder(["alpha"])
    await environments.close()


async def test_closing_ends_running_builds(environments: Environments) -> None:
    asking = asyncio.create_task(environments.folder(["alpha"]))
    while not Counting.built:
        await asyncio.sleep(0.001)
    await environments.close()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert left(environments) == []


async def test_unused_environments_are_removed_and_built_again_when_needed(
    environments: Environments,
) -> None:
    kept, gone = [await environments.folder([name]) for name in ("alpha", "beta")]
    for folder in (kept, gone):
        age(folder, 31)
    # Using an environment updates its time of last use.
    assert await environments.folder(["alpha"]) == kept
    environments.remove_unused()
    assert left(environments) == [Path(kept).name]
    assert has(await environments.folder(["beta"]), "beta.py")
    assert Counting.built == 3


async def test_excess_environments_are_removed_least_recently_used_first(
    tmp_path: Path, builder: Builder
) -> None:
    environments = Environments(tmp_path / "root", builder, unused=timedelta(days=30), most=1)
    older, newer = [await environments.folder([name]) for name in ("alpha", "beta")]
    environments.remove_unused()
    assert len(left(environments)) == 2
    age(older, 2)
    age(newer, 1)
    environments.remove_unused()
    assert left(environments) == [Path(newer).name]
    await environments.close()


async def test_environments_under_construction_are_not_removed(environments: Environments) -> None:
    key = key_of(normal(["alpha"]))
    building = environments.root / f".building-{key}-0000"
    building.mkdir()
    with (environments.root / ".locks" / key).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        environments.remove_unused()
        assert building.exists()
    environments.remove_unused()
    assert left(environments) == []


def test_an_environment_can_be_built_on_the_event_loop_of_servers(
    tmp_path: Path, builder: Builder
) -> None:
    async def build() -> str:
        environments = Environments(tmp_path / "root", builder, unused=timedelta(days=30))
        return await environments.folder(["alpha"])

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        assert has(runner.run(build()), "alpha.py")
