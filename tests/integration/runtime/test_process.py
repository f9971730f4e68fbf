"""A service as a process: ready line, health, drain, shutdown."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from callers import TokenKeys
from child_processes import SOURCE_PATH
from strata.protocol.errors import StrataError
from strata.shared.channels import ChannelFactory
from strata.shared.context import Caller, RequestContext, use

SCRIPT = Path(__file__).with_name("service_process.py")

Spawn = Callable[..., Awaitable[asyncio.subprocess.Process]]


@pytest.fixture
async def spawn(tmp_path: Path, keys: TokenKeys) -> AsyncIterator[Spawn]:
    file = tmp_path / "keys.pem"
    file.write_text(keys.public)
    running: list[asyncio.subprocess.Process] = []

    async def start(
        mode: str = "plain", drain_s: float = 0.0, **variables: str
    ) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-X", "dev", str(SCRIPT), str(file), mode, str(drain_s),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"PYTHONPATH": SOURCE_PATH, **variables},
        )  # fmt: skip
        running.append(process)
        return process

    yield start
    for process in running:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def ready(process: asyncio.subprocess.Process) -> str:
    """Returns the address in the ready line."""
    assert process.stdout is not None
    line = (await asyncio.wait_for(process.stdout.readline(), 30)).decode()
    word, service, address = line.split()
    assert (word, service) == ("READY", "waiting")
    return address


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, list[str], str]:
    out, err = await asyncio.wait_for(process.communicate(), 30)
    return process.returncode, out.decode().splitlines(), err.decode()


def waiting(factory: ChannelFactory, address: str) -> Any:
    return factory.channel(address).unary_unary("/strata.testing.Wait/Wait")


async def until_called(call: Any) -> None:
    """Waits until a call of the service is being served."""
    async with asyncio.timeout(30):
        while await call(b"waiting") == b"0":
            await asyncio.sleep(0.02)


class Health:
    """The health states of the service over one connection, as a load balancer gets them."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub
        request = health_pb2.HealthCheckRequest(service="strata.testing.Wait")
        self._watch = stub.Watch(request)

    async def check(self, service: str) -> str:
        return _name(await self._stub.Check(health_pb2.HealthCheckRequest(service=service)))

    async def news(self) -> str:
        """Waits for the next health state of the service."""
        return _name(await asyncio.wait_for(self._watch.read(), 30))

    def leave(self) -> None:
        self._watch.cancel()


def _name(answer: health_pb2.HealthCheckResponse) -> str:
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


@pytest.fixture
async def probe() -> AsyncIterator[Callable[[str], Health]]:
    """Connects to the health service of an address."""
    async with AsyncExitStack() as stack:

        def connect(address: str) -> Health:
            channel = grpc.aio.insecure_channel(address)
            stack.push_async_callback(channel.close)
            return Health(health_pb2_grpc.HealthStub(channel))

        yield connect


async def test_a_running_call_is_finished_and_resources_are_closed_in_reverse_order(
    spawn: Spawn, factory: ChannelFactory, caller: Caller, probe: Callable[[str], Health]
) -> None:
    process = await spawn(drain_s=5)
    address = await ready(process)
    health, wait = probe(address), waiting(factory, address)
    assert await health.news() == "SERVING"
    with use(RequestContext(caller=caller)):
        call = asyncio.ensure_future(wait(b"6000"))
        await until_called(wait)
        process.send_signal(signal.SIGTERM)
        # Draining: the health status changes, calls are still accepted.
        assert await health.news() == "NOT_SERVING"
        assert await health.check("strata.testing.Wait") == "NOT_SERVING"
        assert await health.check("") == "NOT_SERVING"
        assert await wait(b"0")
        health.leave()
        loop = await call
    code, out, err = await ended(process)
    assert code == 0, err
    assert out == ["background ended", "closed client", "closed store"]
    assert "Traceback" not in err
    assert b"uvloop" in loop


async def test_objects_of_the_start_are_excluded_from_garbage_collection(
    spawn: Spawn, factory: ChannelFactory, caller: Caller
) -> None:
    call = waiting(factory, await ready(await spawn()))

    async def objects(request: bytes) -> tuple[int, int]:
        aside, walked = (await call(request)).split()
        return int(aside), int(walked)

    with use(RequestContext(caller=caller)):
        aside, walked = await objects(b"objects")
        assert aside > 20 * walked
        # Objects that are loaded a little later are frozen, too.
        _, walked = await objects(b"load")
        assert walked > 50_000
        async with asyncio.timeout(30):
            while walked > 50_000:
                await asyncio.sleep(0.2)
                later, walked = await objects(b"objects")
        assert later > aside + 50_000


async def test_a_second_signal_cuts_drain_and_grace_short(
    spawn: Spawn, factory: ChannelFactory, caller: Caller, probe: Callable[[str], Health]
) -> None:
    # Longer than the time limit of a test.
    process = await spawn(drain_s=600)
    address = await ready(process)
    health, wait = probe(address), waiting(factory, address)
    assert await health.news() == "SERVING"
    with use(RequestContext(caller=caller)):
        call = asyncio.ensure_future(wait(b"60000"))
        await until_called(wait)
        process.send_signal(signal.SIGINT)
        # Two signals that are sent before the first is delivered are one.
        assert await health.news() == "NOT_SERVING"
        health.leave()
        process.send_signal(signal.SIGINT)
        code, out, err = await ended(process)
        with pytest.raises(StrataError):
            await call
    assert code == 0, err
    assert out[-1] == "closed store"


async def test_a_signal_during_the_start_ends_it(spawn: Spawn) -> None:
    process = await spawn("stuck")
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readline(), 30) == b"STARTING\n"
    process.send_signal(signal.SIGTERM)
    code, out, err = await ended(process)
    assert code == 0, err
    assert out == ["closed client", "closed store"]


async def test_a_start_that_fails_ends_the_process_with_an_error(spawn: Spawn) -> None:
    code, out, err = await ended(await spawn("broken"))
    assert code == 1
    assert "the schema is not there" in err
    assert out == ["closed client", "closed store"]


async def test_service_logs_variables_that_no_setting_reads(spawn: Spawn) -> None:
    process = await spawn(
        STRATA_SERVICE_LOG_FORMAT="json",
        STRATA_SERVICE_REMOVED_S="4711",
        STRATA_OTHER_REMOVED_S="4711",
    )
    await ready(process)
    process.send_signal(signal.SIGTERM)
    _, stderr = await asyncio.wait_for(process.communicate(), 30)
    [line] = [line for line in stderr.decode().splitlines() if "unknown settings" in line]
    assert json.loads(line)["variables"] == ["STRATA_SERVICE_REMOVED_S"]
    assert json.loads(line)["level"] == "warning"
    assert "4711" not in line
