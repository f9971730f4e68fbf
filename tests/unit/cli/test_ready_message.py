"""The output and announcement of ``strata up`` when it is ready."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from rich.console import Console

from certificates import self_signed
from strata.cli.commands.up import _announce_ready
from strata.gateway.settings import GatewaySettings
from strata.protocol.errors import WrongSettingError
from strata.standalone.compose.local import Local, _check_settings, _internal_address
from strata.standalone.compose.services import ALL_SERVICES
from strata.standalone.data_folder import DataFolder
from strata.standalone.ports import PortClaims


class Model:
    """The chat model, reduced to its shown attributes."""

    process = None

    class choice:  # noqa: N801 - an attribute
        sentence = "No chat model configured."


class Storage:
    """The engines, reduced to their shown attributes."""

    processes: ClassVar[dict[str, int]] = {}


@pytest.fixture
def folder(open_folder: Path) -> Iterator[DataFolder]:
    made = DataFolder(open_folder / "a folder")
    made.open()
    yield made
    made.close()


@pytest.fixture
def folder_in_brackets(open_folder: Path) -> Iterator[DataFolder]:
    """A data folder whose path contains markup of rich."""
    made = DataFolder(open_folder / "[bold] ünï" / "[" / "red]")
    made.open()
    yield made
    made.close()


def shown(folder: DataFolder, **settings: Any) -> str:
    gateway = GatewaySettings(port=7600, **settings)
    local = Local(folder, cast("Any", Storage()), cast("Any", Model()), gateway, "", "", "", "")
    out = StringIO()
    _announce_ready(Console(file=out, soft_wrap=True), local, {})
    return out.getvalue()


def test_the_chat_command_names_the_data_folder_unless_it_is_the_usual_one(
    folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert f"chat assistant --create --data {shlex.quote(str(folder.path))}" in shown(folder)
    # Another terminal does not have our environment.
    monkeypatch.setenv("STRATA_DATA", str(folder.path))
    assert "--data" in shown(folder)
    monkeypatch.setattr("strata.client.data_folder.default_data_folder", lambda: folder.path)
    assert "--data" not in shown(folder)


def test_listening_on_all_addresses_without_tls_prints_a_warning(
    folder: DataFolder, tmp_path: Path
) -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        assert "Warning" not in shown(folder, host=host)
    output = shown(folder, host="0.0.0.0")
    assert "ready at 0.0.0.0:7600" in output
    assert "Warning: other machines can reach this address" in output
    running = folder.running()
    assert running is not None
    assert running.address == "127.0.0.1:7600"
    certificate, key = self_signed(tmp_path, ["localhost"])
    output = shown(folder, host="0.0.0.0", tls_certificate_file=certificate, tls_key_file=key)
    assert "ready at https://0.0.0.0:7600" in output
    assert "Warning" not in output


def test_a_local_listener_without_tls_exists_for_every_gateway(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert _inner("127.0.0.1") == _inner("0.0.0.0") == ""
    assert _inner("192.0.2.1").startswith("127.0.0.1:")
    certificate, key = self_signed(tmp_path, ["localhost"])
    monkeypatch.setenv("STRATA_GATEWAY_TLS_CERTIFICATE_FILE", str(certificate))
    monkeypatch.setenv("STRATA_GATEWAY_TLS_KEY_FILE", str(key))
    assert _inner("127.0.0.1").startswith("127.0.0.1:")
    monkeypatch.setenv("STRATA_GATEWAY_INTERNAL_LISTEN", "127.0.0.1:7610")
    assert _inner("127.0.0.1") == "127.0.0.1:7610"


def _inner(host: str) -> str:
    with PortClaims() as ports:
        return _internal_address(host, ports)


@pytest.mark.parametrize("only", ["tls_certificate_file", "tls_key_file", "tls_client_ca_file"])
def test_a_certificate_without_a_key_is_refused_and_the_reverse(only: str) -> None:
    with pytest.raises(WrongSettingError, match="STRATA_GATEWAY_TLS_"):
        GatewaySettings(**cast("Any", {only: "/x"}))


@pytest.mark.parametrize(
    ("internal", "address"),
    [("", ""), ("0.0.0.0:7610", "10.0.0.5:7610"), ("unix:/tmp/strata.sock", "")],
)
def test_other_gateways_use_the_address_without_tls(
    tmp_path: Path, internal: str, address: str
) -> None:
    certificate, key = self_signed(tmp_path, ["localhost"])
    plain = GatewaySettings(port=7600, advertised_host="10.0.0.5", internal_listen=internal)
    assert plain.advertised_address == "10.0.0.5:7600"
    files = {"tls_certificate_file": certificate, "tls_key_file": key}
    assert plain.model_copy(update=files).advertised_address == address


def test_brackets_in_the_path_of_a_data_folder_are_printed(folder_in_brackets: DataFolder) -> None:
    text = shown(folder_in_brackets)
    assert text.count(str(folder_in_brackets.path)) == 4


@pytest.mark.parametrize("service", [spec.name for spec in ALL_SERVICES])
def test_settings_of_all_services_are_checked_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, service: str
) -> None:
    variable = f"STRATA_{service.upper()}_GRACE_S"
    monkeypatch.setenv(variable, "soon")
    with pytest.raises(WrongSettingError, match=variable):
        _check_settings()
