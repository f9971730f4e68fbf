"""Reserved, picked and preferred ports."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from strata.standalone.ports import PortClaims, ReservedPort, pick_port

_HOLDER = """
import sys
from strata.standalone.ports import PortClaims
with PortClaims() as ports:
    print(ports.pick(int(sys.argv[1])), flush=True)
    sys.stdin.read()
"""


def test_a_port_that_is_free_is_kept() -> None:
    port = pick_port()
    assert pick_port(port) == port
    with socket.create_server(("127.0.0.1", port)):
        assert pick_port(port) != port


def test_a_reserved_port_is_assigned_to_no_other_process() -> None:
    with ReservedPort() as reserved, socket.socket() as other:
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", reserved.number))
        assert pick_port(reserved.number) != reserved.number


def test_processes_of_the_same_user_can_listen_on_a_reserved_port() -> None:
    with ReservedPort() as reserved:
        for _ in range(3):
            with (
                socket.create_server(("127.0.0.1", reserved.number), reuse_port=True) as server,
                socket.create_connection(("127.0.0.1", reserved.number), timeout=5),
            ):
                server.settimeout(5)
                server.accept()[0].close()
            with socket.socket() as client:
                assert client.connect_ex(("127.0.0.1", reserved.number)) != 0


def test_ports_assigned_to_services_are_not_reserved() -> None:
    promised = {port for port in range(1 << 16) if port % 5}
    for _ in range(10):
        with ReservedPort(excluding=promised) as reserved:
            assert reserved.number not in promised


def test_the_next_port_is_used_if_the_preferred_one_is_in_use() -> None:
    # Ports below the range that the system assigns automatically.
    preferred = next(
        port
        for port in range(21_000, 30_000, 7)
        if pick_port(port) == port and pick_port(port + 1) == port + 1
    )
    with PortClaims() as ports:
        assert ports.next_free(preferred) == preferred
    with socket.create_server(("127.0.0.1", preferred)), PortClaims() as ports:
        assert ports.next_free(preferred) == preferred + 1
        assert preferred not in ports.ports


@pytest.mark.child_process
def test_a_claimed_port_is_chosen_by_no_other_process_until_its_holder_ends() -> None:
    port = pick_port()
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder, PortClaims() as ports:
        assert holder.stdout is not None
        assert holder.stdout.readline() == f"{port}\n"
        assert ports.pick(port) != port
        assert ports.next_free(port) != port
        holder.kill()
        holder.wait()
        assert ports.pick(port) == port
        assert ports.pick(port) != port


def test_a_picked_port_is_outside_of_the_range_for_outgoing_connections() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    if first < 20_000:
        pytest.skip("nearly all ports of this machine are for outgoing connections")
    assert not any(first <= pick_port() <= last for _ in range(50))
