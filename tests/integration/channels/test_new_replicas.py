"""Replicas that are added and removed behind one name, with a DNS server of the test."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from integration.channels.conftest import stub_to
from name_server import NameServer
from strata.shared.channels import ChannelFactory, ChannelOptions
from strata.shared.renewing_channel import names_a_host
from strata.standalone.ports import pick_port


class Replica:
    """Counts the calls and connections of a server."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.connections: set[str] = set()
        self.go_on = asyncio.Event()
        self.server: Any = None

    def servicer(self, echo: Any) -> Any:
        replica = self

        class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
            async def Echo(self, request: Any, context: Any) -> Any:
                replica.connections.add(context.peer())
                return echo.pb.Note(text=replica.host)

            async def Count(self, request: Any, context: Any) -> AsyncIterator[Any]:
                replica.connections.add(context.peer())
                yield echo.pb.Note(text=replica.host)
                await replica.go_on.wait()
                yield echo.pb.Note(text="the end")

        return Servicer()


class Replicas:
    """A client, a name server and replicas: one port, many loopback addresses."""

    def __init__(self, names: NameServer, port: int, start: Any, echo: Any) -> None:
        self.names = names
        self._port = port
        self._start = start
        self._echo = echo
        self.factory = ChannelFactory(ChannelOptions(renew_s=0.1))
        target = f"dns://{names.address}/replicas.test:{port}"
        self.stub = stub_to(target, self.factory, echo)

    async def replica(self, host: str) -> Replica:
        made = Replica(host)
        made.server = await self._start(made.servicer(self._echo), host=host, port=self._port)
        return made

    async def answers(self, calls: int = 30) -> Counter[str]:
        note = self._echo.pb.Note()
        return Counter([(await self.stub.Echo(note)).text for _ in range(calls)])

    async def until_asked(self, times: int) -> Counter[str]:
        """Calls until the name server had some further questions; returns the answering hosts."""
        asked, counts = self.names.questions, Counter[str]()
        async with asyncio.timeout(60):
            while self.names.questions < asked + times:
                counts += await self.answers(1)
        return counts

    async def until(self, *hosts: str) -> None:
        """Calls until exactly these hosts answer."""
        async with asyncio.timeout(60):
            while set(await self.answers()) != set(hosts):
                await asyncio.sleep(0.05)


@pytest.fixture
async def replicas(start: Any, echo: Any, keys: Any) -> AsyncIterator[Replicas]:
    names = NameServer()
    await names.start()
    made = Replicas(names, pick_port(), start, echo)
    with keys.signed_in():
        yield made
    await made.factory.close()
    names.stop()


async def test_a_new_replica_gets_calls_and_every_replica_keeps_its_one_connection(
    replicas: Replicas,
) -> None:
    one = await replicas.replica("127.0.0.1")
    replicas.names.addresses = [one.host]
    await replicas.until(one.host)
    two = await replicas.replica("127.0.0.2")
    replicas.names.addresses = [one.host, two.host]
    await replicas.until(one.host, two.host)
    three = await replicas.replica("127.0.0.3")
    replicas.names.addresses = [three.host, one.host, two.host]
    await replicas.until(one.host, two.host, three.host)
    # After many replacements there is still no storm of connections.
    await replicas.until_asked(5)
    assert [len(server.connections) for server in (one, two, three)] == [1, 1, 1]


async def test_a_removed_replica_gets_no_new_calls_and_finishes_its_calls(
    replicas: Replicas, echo: Any
) -> None:
    one, two = await replicas.replica("127.0.0.1"), await replicas.replica("127.0.0.2")
    replicas.names.addresses = [one.host]
    stream = replicas.stub.Count(echo.pb.Note())
    assert (await stream.read()).text == one.host
    replicas.names.addresses = [two.host]
    await replicas.until(two.host)
    one.go_on.set()
    assert (await stream.read()).text == "the end"


async def test_a_failing_or_empty_name_server_keeps_the_known_addresses(
    replicas: Replicas,
) -> None:
    one = await replicas.replica("127.0.0.1")
    replicas.names.addresses = [one.host]
    await replicas.until(one.host)
    for replicas.names.fails, replicas.names.addresses in ((True, [one.host]), (False, [])):
        assert set(await replicas.until_asked(2)) == {one.host}


async def test_a_new_address_that_does_not_answer_gets_no_calls(replicas: Replicas) -> None:
    one = await replicas.replica("127.0.0.1")
    replicas.names.addresses = [one.host]
    await replicas.until(one.host)
    replicas.names.addresses = [one.host, "127.0.0.9"]
    assert set(await replicas.until_asked(3)) == {one.host}


async def test_an_unused_channel_does_not_resolve_names(replicas: Replicas) -> None:
    one = await replicas.replica("127.0.0.1")
    replicas.names.addresses = [one.host]
    await replicas.until(one.host)
    # Look-ups that the last calls started may still be running. Then there are none, while a
    # channel in use does one every few tenths of a second.
    async with asyncio.timeout(60):
        asked = -1
        while replicas.names.questions != asked:
            asked = replicas.names.questions
            await asyncio.sleep(1.5)


def test_a_new_replica_gets_calls_within_fifteen_seconds() -> None:
    # The pause varies by a fifth; the name servers of Kubernetes cache for five seconds.
    assert ChannelOptions().renew_s * 1.2 + 5 < 15


@pytest.mark.parametrize(
    ("target", "named"),
    [
        ("dns:///recall:7603", True),
        ("dns://10.0.0.1:53/recall:7603", True),
        ("dns:recall.strata.svc:7603", True),
        ("recall:7603", True),
        ("127.0.0.1:7603", False),
        ("dns:///127.0.0.1:7603", False),
        ("ipv4:10.0.0.1:1,10.0.0.2:1", False),
        ("unix:/run/strata/recall.sock", False),
        ("[::1]:7603", False),
    ],
)
def test_only_host_names_are_resolved_again(target: str, named: bool) -> None:
    assert names_a_host(target) is named
