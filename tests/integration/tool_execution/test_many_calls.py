"""Many calls of one reply, some of them malicious."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inner_services import InnerServices
from integration.tool_execution.conftest import Tools
from strata.api.tool_execution.v1 import tool_service_pb2 as pb
from strata.api.tool_execution.v1 import tool_service_pb2_grpc as pb_grpc

pytestmark = pytest.mark.asyncio(loop_scope="session")

WORK = '''
import os
import sys
import time

def work(number: int, kind: str = "") -> int:
    """Doubles a number.

    Args:
        number: It.
        kind: What it does instead.
    """
    if kind == "sleep":
        time.sleep(3600)
    if kind == "print":
        for _ in range(1024):
            sys.stdout.write("x" * (1 << 20))
    if kind == "fork":
        while True:
            try:
                os.fork()
            except OSError:
                time.sleep(0.01)
    return 2 * number
'''
CALLS = 200
HARM = {17: "sleep", 101: "print", 163: "fork"}


async def test_three_harmful_calls_do_not_affect_two_hundred_others(
    tools: Tools, services: InnerServices
) -> None:
    registry: Any = pb_grpc.ToolServiceStub(services.channel("tool_execution"))
    await registry.UpsertTool(
        pb.UpsertToolRequest(source_code=WORK, enable_parallel_execution=True)
    )
    calls = [("work", {"number": n, "kind": HARM.get(n, "")}) for n in range(CALLS)]
    ended = await tools.run(*calls, own=["work"])
    returns = [json.loads(call.tool_return.content) for call in ended]
    good = {n: packed["message"] for n, packed in enumerate(returns) if packed["status"] == "OK"}
    assert good == {n: str(2 * n) for n in range(CALLS) if n not in HARM}
    slept, printed, forked = (returns[n]["message"] for n in HARM)
    # Each error names the limit that was exceeded, and its value.
    assert "30 seconds" in slept
    assert "1 MiB" in printed
    assert "64 processes" in forked
