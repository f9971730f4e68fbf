"""TLS between the command line, the Python client and the gateway."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from certificates import issued, self_signed
from command_line import Outcome, run_command
from e2e.cli.scripted import KEY, ScriptedGateway
from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.client import connect
from strata.client.settings import ClientSettings
from strata.client.target import Choice, find_target
from strata.protocol.errors import FailedPreconditionError, UnavailableError
from strata.protocol.tls import ClientTls
from strata.shared.tls import ServerTls
from strata.standalone.ports import pick_port


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Certificate, which is its own authority, and key of a gateway called localhost."""
    return self_signed(tmp_path, ["localhost"], "127.0.0.1")


@asynccontextmanager
async def gateway(pair: tuple[Path, Path], **settings: Any) -> AsyncIterator[ScriptedGateway]:
    files = {"tls_certificate_file": pair[0], "tls_key_file": pair[1]}
    scripted = ScriptedGateway(settings=files | settings)
    with scripted.port:
        await scripted.start()
        yield scripted
        await scripted.stop()


async def strata(*arguments: str, **environment: str) -> Outcome:
    settings = {"STRATA_API_KEY": KEY, **environment}
    return await run_command(*arguments, environment=settings)


async def agent_names(address: str, ca: Path | None = None) -> list[str]:
    async with connect(address, api_key=KEY, ca_file=ca, timeout_s=5) as client:
        response = await client.agents.ListAgents(pb.ListAgentsRequest())
    return [agent.name for agent in response.agents]


async def test_the_command_line_uses_tls(pair: tuple[Path, Path]) -> None:
    async with gateway(pair) as scripted:
        scripted.agents.add("ann")
        port = scripted.port.number
        ca = str(pair[0])
        for options in (
            ("--address", f"https://localhost:{port}", "--ca-file", ca),
            ("--address", f"127.0.0.1:{port}", "--tls", "--ca-file", ca),
            ("--address", f"127.0.0.1:{port}", "--ca-file", ca),
        ):
            done = await strata("agents", "list", *options)
            assert done.code == 0, done.err
            assert "ann" in done.out
        environment = {"STRATA_ADDRESS": f"localhost:{port}", "STRATA_TLS_CA_FILE": ca}
        done = await strata("agents", "list", STRATA_TLS="1", **environment)
        assert "ann" in done.out


async def test_the_python_client_uses_tls(pair: tuple[Path, Path]) -> None:
    async with gateway(pair) as scripted:
        scripted.agents.add("ann")
        assert await agent_names(f"https://localhost:{scripted.port.number}", pair[0]) == ["ann"]


async def test_a_certificate_of_an_unknown_authority_is_refused(pair: tuple[Path, Path]) -> None:
    async with gateway(pair) as scripted:
        done = await strata(
            "agents", "list", "--address", f"https://localhost:{scripted.port.number}"
        )
        assert done.code == 3
        assert "certificate" in done.err
        assert "STRATA_TLS_CA_FILE" in done.err


async def test_connections_without_tls_are_refused(pair: tuple[Path, Path]) -> None:
    async with gateway(pair) as scripted:
        with pytest.raises(UnavailableError):
            await agent_names(scripted.address)


async def test_the_other_services_have_an_address_without_tls(pair: tuple[Path, Path]) -> None:
    inner = f"127.0.0.1:{pick_port()}"
    async with gateway(pair, internal_listen=inner) as scripted:
        scripted.agents.add("ann")
        assert await agent_names(inner) == ["ann"]


async def test_clients_without_a_certificate_are_refused_if_one_is_required(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "client"
    folder.mkdir()
    authority, certificate, key = issued(folder, "client.example.com")
    async with gateway(pair, tls_client_ca_file=authority) as scripted:
        scripted.agents.add("ann")
        address = f"https://localhost:{scripted.port.number}"
        with pytest.raises(UnavailableError):
            await agent_names(address, pair[0])
        monkeypatch.setenv("STRATA_TLS_CERTIFICATE_FILE", str(certificate))
        monkeypatch.setenv("STRATA_TLS_KEY_FILE", str(key))
        assert await agent_names(address, pair[0]) == ["ann"]


async def test_a_replaced_certificate_is_used_for_new_connections(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    renewed = tmp_path / "renewed"
    renewed.mkdir()
    self_signed(renewed, ["localhost"])
    async with gateway(pair) as scripted:
        address = f"https://localhost:{scripted.port.number}"
        before = tmp_path / "before.pem"
        shutil.copy(pair[0], before)
        assert await agent_names(address, before) == []
        # Between the two files the former pair stays in use.
        (renewed / "key.pem").replace(pair[1])
        assert await agent_names(address, before) == []
        (renewed / "certificate.pem").replace(pair[0])
        assert await agent_names(address, pair[0]) == []
        with pytest.raises(UnavailableError):
            await agent_names(address, before)


def test_a_certificate_with_another_private_key_is_refused(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    certificate, _ = self_signed(other, ["localhost"])
    with pytest.raises(FailedPreconditionError, match="a certificate and its private key"):
        ServerTls(certificate, pair[1]).credentials()
    with pytest.raises(FailedPreconditionError, match="There is no file"):
        ServerTls(tmp_path / "missing.pem", pair[1]).credentials()
    with pytest.raises(FailedPreconditionError, match="certificates of authorities"):
        ClientTls(ca=pair[1]).credentials()
    with pytest.raises(FailedPreconditionError, match="needs its key"):
        ClientTls(certificate=certificate).credentials()


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("https://example.com", "example.com:443"),
        ("https://example.com:7600/", "example.com:7600"),
        ("https://[::1]", "[::1]:443"),
    ],
)
async def test_an_https_address_has_a_default_port(address: str, target: str) -> None:
    done = await strata("agents", "list", "--address", address, "--ca-file", "/missing.pem")
    assert "There is no file /missing.pem" in done.err

    assert find_target(Choice(address, KEY), ClientSettings.from_environment()).address == target
