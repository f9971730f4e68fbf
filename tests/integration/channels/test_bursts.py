"""More concurrent calls than a server accepts: each is answered, or refused with a retry delay."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import grpc
import grpc.aio
import pytest

from strata.protocol.errors import Reason, ResourceExhaustedError
from strata.protocol.status import from_rpc_error
from strata.shared.settings import ServerLimits

# Enough that gRPC, with its default limits of pending calls, ends some itself.
CALLS = 4000


def servicer(echo: Any) -> Any:
    class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Echo(self, request: Any, context: Any) -> Any:
            await asyncio.sleep(0.2)
            return request

        async def Count(self, request: Any, context: Any) -> Any:
            await asyncio.sleep(0.2)
            yield request

    return Servicer()


async def outcome(call: Any) -> str:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        raised = from_rpc_error(error)
        if isinstance(raised, ResourceExhaustedError):
            assert raised.reason is Reason.OVERLOADED, raised
            assert raised.retry_after is not None
            assert raised.retry_after > 0
        return error.code().name
    return "OK"


@pytest.mark.parametrize(
    ("method", "connections"),
    [
        ("Echo", 40),
        ("Count", 1),
        pytest.param("Echo", 1, marks=pytest.mark.slow),
        pytest.param("Count", 40, marks=pytest.mark.slow),
    ],
)
async def test_every_call_of_a_burst_is_answered_or_refused_with_a_hint(
    start: Any, echo: Any, keys: Any, method: str, connections: int
) -> None:
    limits = ServerLimits(max_in_flight_unary=64, max_in_flight_streams=64)
    server = await start(servicer(echo), limits=limits)
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [
        grpc.aio.insecure_channel(server.address, options=options) for _ in range(connections)
    ]
    metadata = keys.metadata()
    calls = []
    for number in range(CALLS):
        stub = echo.pb_grpc.EchoServiceStub(channels[number % connections])
        call = getattr(stub, method)(echo.pb.Note(), metadata=metadata)
        calls.append(outcome(call if method == "Echo" else call.read()))
    outcomes = Counter(await asyncio.gather(*calls))
    for channel in channels:
        await channel.close()
    assert set(outcomes) <= {"OK", "RESOURCE_EXHAUSTED"}, outcomes
    assert outcomes["OK"] >= 64
