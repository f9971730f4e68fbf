"""Child processes of the services' event loop."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

import psutil
import pytest

from polling import eventually, settle
from strata.shared.event_loop import loop_factory

pytestmark = pytest.mark.child_process

_Result = TypeVar("_Result")
_ECHO = (
    "import sys; data = sys.stdin.buffer.read(); sys.stdout.write(str(len(data)));"
    " sys.stderr.write('e' * 100_000); sys.exit(3)"
)
PIPE = asyncio.subprocess.PIPE


def in_loop_of_services(work: Coroutine[Any, Any, _Result]) -> _Result:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(work)


async def python(code: str, **options: Any) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", code, **options)


def test_a_child_reads_and_writes_more_than_its_pipes_hold() -> None:
    async def work() -> tuple[bytes, bytes, int | None]:
        process = await python(_ECHO, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        output, errors = await process.communicate(b"x" * 3_000_000)
        return output, errors, process.returncode

    assert in_loop_of_services(work()) == (b"3000000", b"e" * 100_000, 3)


def test_a_child_is_killed_and_its_end_is_collected() -> None:
    async def work() -> int:
        process = await python("import time; time.sleep(100)")
        process.kill()
        return await process.wait()

    assert in_loop_of_services(work()) == -9


def test_its_end_is_noticed_without_file_descriptors_of_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)

    async def work() -> int:
        return await (await python("raise SystemExit(4)")).wait()

    assert in_loop_of_services(work()) == 4


def test_a_child_that_ended_breaks_the_pipe() -> None:
    async def work() -> None:
        process = await python("", stdin=PIPE)
        assert process.stdin is not None
        process.stdin.write(b"x" * 1_000_000)
        with pytest.raises(BrokenPipeError):
            await process.stdin.drain()
        await process.wait()

    in_loop_of_services(work())


def test_a_start_that_is_cancelled_leaves_nothing_open() -> None:
    this = psutil.Process()

    async def work() -> None:
        children = this.children()
        # The loop opens what it keeps.
        await (await python("", stdin=PIPE, stdout=PIPE, stderr=PIPE)).communicate()
        files = this.num_fds()
        for rounds in range(8):
            starting = asyncio.create_task(
                python("import time; time.sleep(100)", stdin=PIPE, stdout=PIPE, stderr=PIPE)
            )
            await settle(rounds)
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            assert starting.cancelled()
        await eventually(lambda: (this.num_fds(), this.children()) == (files, children))

    in_loop_of_services(work())


def test_a_program_that_does_not_exist_is_an_error() -> None:
    async def work() -> None:
        with pytest.raises(FileNotFoundError):
            await asyncio.create_subprocess_exec("/no/such/program", stdin=PIPE)

    in_loop_of_services(work())


def test_the_service_is_not_forked() -> None:
    forks = []
    # The function cannot be removed again, and does no harm.
    os.register_at_fork(before=lambda: forks.append(1))

    async def work() -> int:
        return await (await python("", stdout=PIPE)).wait()

    assert in_loop_of_services(work()) == 0
    assert forks == []
