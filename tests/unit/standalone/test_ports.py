from __future__ import annotations

import socket

import pytest

from strata.standalone.ports import ReservedPort, pick_port


def test_a_port_that_is_free_is_kept() -> None:
    port = pick_port()
    assert pick_port(port) == port
    with socket.create_server(("127.0.0.1", port)):
        assert pick_port(port) != port


def test_a_reserved_port_is_given_to_no_other_process() -> None:
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


def test_an_assigned_port_is_not_reserved() -> None:
    promised = {port for port in range(1 << 16) if port % 5}
    for _ in range(10):
        with ReservedPort(excluding=promised) as reserved:
            assert reserved.number not in promised
