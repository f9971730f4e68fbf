"""Measures a custom tool in the sandbox, compared with a plain subprocess."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

from benchmarks.bench import Bench
from benchmarks.report import Row
from benchmarks.samples import Samples
from benchmarks.tools_service import open_tools_service

CALL_TARGET_MS = 10.0
_PER_CALL_TARGET_MS = 10.0
_AT_ONCE = 8
_SOURCE = '''
def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: One of them.
        b: The other.
    """
    return a + b
'''
_PLAIN = "import json, sys; args = json.load(sys.stdin); print(json.dumps(args['a'] + args['b']))"


async def custom_tools(bench: Bench) -> None:
    """Measures calls of a trivial tool, one after the other and concurrently.

    First with the tool service alone, by ExecuteTools as in a turn; then with RunTool through the
    gateway of the whole system.
    """
    await _alone(bench)
    await bench.client.put_tool(_SOURCE)

    async def call() -> None:
        if await bench.client.run_tool("add", '{"a": 2, "b": 3}') != "5":
            raise RuntimeError("the tool gave another sum")

    count = bench.effort.calls
    isolation = await bench.client.isolation("add", '{"a": 2, "b": 3}')
    calls, plain = Samples(), Samples()
    for _ in range(5):
        await call()
    await calls.time(count, call)
    await plain.time(min(count, 50), lambda: asyncio.to_thread(_subprocess))
    started = time.perf_counter()
    await asyncio.gather(*(_several(call, count // _AT_ONCE) for _ in range(_AT_ONCE)))
    done = count // _AT_ONCE * _AT_ONCE
    milliseconds = (time.perf_counter() - started) / done * 1000
    bench.report.add(
        Row("floor: plain subprocess, no isolation", plain.median, "ms", p95=plain.p95,
            samples=len(plain)),
        Row("custom tool (RunTool)", calls.median, "ms", p95=calls.p95, floor=plain.median,
            floor_name="subprocess", samples=len(calls), note=isolation),
        Row(f"custom tool, {_AT_ONCE} at once, each", milliseconds, "ms", floor=plain.median,
            floor_name="subprocess", target=_PER_CALL_TARGET_MS, samples=done,
            note=f"{1000 / milliseconds:.0f} a second"),
    )  # fmt: skip


async def _alone(bench: Bench) -> None:
    async with open_tools_service() as service:
        await service.put(_SOURCE)

        async def call() -> None:
            # The packed return, as shown to the model.
            if '"5"' not in (tool_return := await service.execute("add", a=2, b=3)):
                raise RuntimeError(f"the tool gave another sum: {tool_return}")

        count = bench.effort.calls
        calls, plain = Samples(), Samples()
        for _ in range(5):
            await call()
        # Alternately, so that other load affects both.
        for _ in range(count):
            await calls.time(1, call)
            await plain.time(1, lambda: asyncio.to_thread(_subprocess))
        started = time.perf_counter()
        await asyncio.gather(*(_several(call, count // _AT_ONCE) for _ in range(_AT_ONCE)))
        done = count // _AT_ONCE * _AT_ONCE
        milliseconds = (time.perf_counter() - started) / done * 1000
    bench.report.add(
        Row("custom tool (ExecuteTools)", calls.median, "ms", p95=calls.p95, floor=plain.median,
            floor_name="subprocess", target=CALL_TARGET_MS, samples=len(calls)),
        Row(f"custom tool (ExecuteTools), {_AT_ONCE} at once, each", milliseconds, "ms",
            floor=plain.median, floor_name="subprocess", target=_PER_CALL_TARGET_MS, samples=done,
            note=f"{1000 / milliseconds:.0f} a second"),
    )  # fmt: skip


async def _several(call: Callable[[], Awaitable[None]], count: int) -> None:
    for _ in range(count):
        await call()


def _subprocess() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _PLAIN],
        input=b'{"a": 2, "b": 3}',
        capture_output=True,
        check=True,
    )
    if done.stdout.strip() != b"5":
        raise RuntimeError("the subprocess gave another sum")
