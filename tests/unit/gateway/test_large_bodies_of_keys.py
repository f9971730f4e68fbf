"""Large bodies of one key wait for each other, not those of other keys."""

from __future__ import annotations

import asyncio
import threading

import grpc.aio

from strata.gateway.http.json_messages import LARGE_BYTES, LargeBodies

BODY = b"x" * LARGE_BYTES
BUSY = (("authorization", "Bearer busy"),)
QUIET = (("x-api-key", "quiet"),)


async def test_a_large_body_does_not_wait_for_those_of_another_key() -> None:
    ended: list[str] = []
    go = threading.Event()

    def work(_: bytes) -> None:
        assert go.wait(30)
        ended.append("busy")

    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        bodies = LargeBodies(channel)
        busy = [asyncio.create_task(bodies.handle(work, BODY, BUSY)) for _ in range(8)]
        await asyncio.sleep(0)
        quiet = asyncio.create_task(bodies.handle(lambda _: ended.append("quiet"), BODY, QUIET))
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(*busy, quiet)
    # Two are handled at once, so that two had begun before, and another one may end meanwhile.
    assert ended.index("quiet") <= 3
