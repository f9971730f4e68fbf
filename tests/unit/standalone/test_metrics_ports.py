"""The ports of the metrics of a local Strata."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from strata.gateway.settings import DEFAULT_METRICS_PORT, GatewaySettings
from strata.standalone.compose.local import LocalOptions, _port
from strata.standalone.compose.services import ALL_SERVICES
from strata.standalone.compose.split import _metrics_ports
from strata.standalone.ports import PortClaims


def test_each_process_has_a_free_port_from_that_of_the_gateway_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, PortClaims() as claims:
        number = taken.getsockname()[1]
        for claimed in (number - 1, number + 1, number + 2):
            assert claims.claim(claimed)
        local: Any = SimpleNamespace(metrics_port=number - 1, ports=claims)
        ports = _metrics_ports(local)
    assert ports.keys() == {spec.name for spec in ALL_SERVICES}
    assert ports["gateway"] == number - 1
    assert len(set(ports.values())) == len(ALL_SERVICES)
    assert {number, number + 1, number + 2}.isdisjoint(ports.values())


@pytest.mark.parametrize("variable", ["STRATA_METRICS_PORT", "STRATA_GATEWAY_METRICS_PORT"])
def test_the_port_can_be_set(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "7999")
    settings = GatewaySettings()
    assert settings.metrics_port == 7999
    with PortClaims() as ports:
        assert _port(settings.metrics_port, DEFAULT_METRICS_PORT, LocalOptions(7600), ports) == 7999
        assert 7999 in ports.ports


def test_without_a_setting_the_default_port_or_a_later_one_is_used() -> None:
    with PortClaims() as ports:
        port = _usual_port(ports)
        assert port >= DEFAULT_METRICS_PORT
        assert _usual_port(ports) != port, "the port is the HTTP port"
    with socket.create_server(("127.0.0.1", port)), PortClaims() as ports:
        assert _usual_port(ports) not in {0, port}


def test_two_that_start_at_once_have_different_ports() -> None:
    with PortClaims() as first, PortClaims() as second:
        assert _usual_port(first) != _usual_port(second)


def _usual_port(ports: PortClaims) -> int:
    return _port(None, DEFAULT_METRICS_PORT, LocalOptions(7600), ports)
