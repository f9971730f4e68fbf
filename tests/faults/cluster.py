"""Runs several replicas of every service; each name resolves to all of them, as in Kubernetes.

A small DNS server resolves the names. The replicas of a service listen on the same port of
different loopback addresses, as pods do. Run as a program, this module supervises a cluster:

    python -m faults.cluster FOLDER SKEW_SECONDS [REPLICAS]

The default is two replicas, the maximum four.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from dnslib import QTYPE, RR, A, DNSHeader, DNSRecord

import strata
from faults.live import Live
from strata.shared.event_loop import loop_factory
from strata.shared.logs import configure_logging
from strata.standalone.compose.local import Local, LocalOptions, open_local
from strata.standalone.compose.services import ALL_SERVICES, GATEWAY, INNER_SERVICES, ServiceSpec
from strata.standalone.compose.split import ServiceProcess
from strata.standalone.data_folder import DataFolder

ADDRESSES = ("127.0.0.11", "127.0.0.12", "127.0.0.13", "127.0.0.14")
_REPLICAS = 2
_SKEWED = Path(__file__).with_name("skewed")
_TTL_S = 1


class NameServer:
    """Answers every query for IPv4 addresses with the addresses of all replicas.

    Args:
        addresses: Addresses of the replicas.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def address(self) -> str:
        """``host:port`` of the server."""
        host, port = self._socket.getsockname()
        return f"{host}:{port}"

    def _serve(self) -> None:
        while True:
            data, peer = self._socket.recvfrom(4096)
            with contextlib.suppress(Exception):
                self._socket.sendto(_answer(data, self._addresses), peer)


def _answer(data: bytes, addresses: Sequence[str]) -> bytes:
    request = DNSRecord.parse(data)
    reply = DNSRecord(DNSHeader(id=request.header.id, qr=1, aa=1, ra=1), q=request.q)
    if request.q.qtype == QTYPE.A:
        for address in addresses:
            reply.add_answer(RR(request.q.qname, QTYPE.A, rdata=A(address), ttl=_TTL_S))
    packed: bytes = reply.pack()
    return packed


class Cluster(Live):
    """A running cluster.

    Args:
        folder: The data folder.
        model_url: The chat model.
        skew_s: Seconds by which the clocks of the second replicas are wrong.
    """

    def __init__(self, folder: Path, model_url: str, *, skew_s: float = 0.0) -> None:
        super().__init__(folder, model_url, split=True)
        self._skew_s = skew_s
        tests = Path(__file__).parents[1]
        self.environment["PYTHONPATH"] = os.pathsep.join(
            [self.environment["PYTHONPATH"], str(tests), str(tests / "support")]
        )

    @property
    def addresses(self) -> Sequence[str]:
        """The addresses of the gateways."""
        return self.runtime.address.split(",")

    def _command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "faults.cluster"),
            *(str(self.folder.path), str(self._skew_s)),
        ]


def _pick_port(addresses: Sequence[str], taken: set[int]) -> int:
    """Returns a port that is free on every address of the replicas."""
    while True:
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            first = held.enter_context(socket.socket())
            first.bind((addresses[0], 0))
            port = int(first.getsockname()[1])
            for address in addresses[1:]:
                held.enter_context(socket.socket()).bind((address, port))
            if port not in taken:
                taken.add(port)
                return port


def _values(local: Local, spec: ServiceSpec) -> dict[str, Any]:
    values = local.service_values(spec.name)
    # As in the manifests, without the pause in which kube-proxy removes a pod that is ending.
    values.update(drain_s=0.5, grace_s=20.0, pool_size=2)
    return values


async def _serve(folder: DataFolder, skew_s: float, addresses: Sequence[str]) -> None:
    names = NameServer(addresses)
    stopped = asyncio.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signal_number, stopped.set)
    async with AsyncExitStack() as stack:
        local = await open_local(folder, LocalOptions(port=0, split=True), stack)
        taken: set[int] = set()
        ports = {spec.name: _pick_port(addresses, taken) for spec in ALL_SERVICES}
        targets = {
            name: f"dns://{names.address}/{name.replace('_', '-')}.test:{port}"
            for name, port in ports.items()
        }
        logs = folder.path / "logs"
        processes: list[ServiceProcess] = []

        async def start(specs: Sequence[ServiceSpec]) -> None:
            for number, address in enumerate(addresses):
                replica_logs = logs / f"replica-{number}"
                replica_logs.mkdir(parents=True, exist_ok=True)
                for spec in specs:
                    values = {
                        **_values(local, spec),
                        "host": address,
                        "port": ports[spec.name],
                        "targets": targets,
                    }
                    skewed = number > 0 and skew_s
                    process = ServiceProcess(
                        spec, values, replica_logs, _skewed(skew_s) if skewed else None
                    )
                    processes.append(process)
                    await process.supervisor.start()

        await start(INNER_SERVICES)
        await start([GATEWAY])
        gateways = ",".join(f"{address}:{ports[GATEWAY.name]}" for address in addresses)
        folder.announce(gateways, local.processes)
        await stopped.wait()
        stop_now = asyncio.Event()
        await asyncio.gather(*(process.stop(stop_now) for process in processes))


def _skewed(seconds: float) -> dict[str, str]:
    roots = [str(Path(part).parent) for part in strata.__path__]
    return {
        "PYTHONPATH": os.pathsep.join([str(_SKEWED), *roots]),
        "STRATA_TEST_CLOCK_SKEW_S": str(seconds),
    }


def main(arguments: Sequence[str]) -> None:
    """Runs a cluster on a data folder until the process gets a signal to stop."""
    configure_logging("WARNING", "console")
    folder = DataFolder(Path(arguments[0]))
    replicas = int(arguments[2]) if len(arguments) > 2 else _REPLICAS
    folder.open()
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(folder, float(arguments[1]), ADDRESSES[:replicas]))
    finally:
        folder.close()


if __name__ == "__main__":
    main(sys.argv[1:])
