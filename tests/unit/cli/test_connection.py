"""The gateway address and key that a command uses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strata.cli.connection import Choice, Target, find_organization_target, find_target
from strata.cli.failures import UsageError
from strata.client.errors import UnreachableError
from strata.client.settings import ClientSettings
from strata.protocol.errors import UnauthenticatedError
from strata.standalone.data_folder import DataFolder


@pytest.fixture
def folder(open_folder: Path) -> Iterator[DataFolder]:
    """A data folder in use by this process."""
    folder = DataFolder(open_folder / "data")
    folder.open()
    yield folder
    folder.close()


@pytest.fixture
def running(folder: DataFolder) -> DataFolder:
    folder.announce("127.0.0.1:7600", {})
    folder.secret("api-key", lambda: "folder-key")
    return folder


def find(folder: DataFolder, *, address: str = "", api_key: str = "") -> Target:
    return find_target(Choice(address, api_key), ClientSettings(data=folder.path))


def address_and_key(choice: Choice, settings: ClientSettings) -> tuple[str, str]:
    target = find_target(choice, settings)
    return target.address, target.api_key


def test_address_and_key_are_read_from_the_data_folder(running: DataFolder) -> None:
    target = find(running)
    assert (target.address, target.api_key) == ("127.0.0.1:7600", "folder-key")


def test_options_precede_the_environment_and_that_precedes_the_folder(
    running: DataFolder,
) -> None:
    settings = ClientSettings(address="10.0.0.1:1", api_key="environment", data=running.path)
    assert address_and_key(Choice(), settings) == ("10.0.0.1:1", "environment")
    assert address_and_key(Choice("10.0.0.2:2"), settings) == ("10.0.0.2:2", "environment")
    assert address_and_key(Choice("10.0.0.2:2", "mine"), settings) == ("10.0.0.2:2", "mine")


def test_a_data_folder_option_precedes_the_environment(running: DataFolder) -> None:
    settings = ClientSettings(address="10.0.0.1:1", api_key="environment")
    assert address_and_key(Choice(data=running.path), settings) == ("127.0.0.1:7600", "folder-key")
    choice = Choice("10.0.0.2:2", data=running.path)
    assert address_and_key(choice, settings) == ("10.0.0.2:2", "environment")


def test_the_key_of_the_folder_is_sent_only_to_its_own_address(running: DataFolder) -> None:
    assert find(running, address="127.0.0.1:7600").api_key == "folder-key"
    with pytest.raises(UnauthenticatedError, match="STRATA_API_KEY"):
        find(running, address="10.0.0.1:7600")


def test_stopped_strata_is_unreachable(open_folder: Path) -> None:
    folder = DataFolder(open_folder / "a folder")
    with pytest.raises(UnreachableError) as raised:
        find(folder)
    assert raised.value.message.endswith(f"Start it with: strata up --data '{folder.path}'")


def test_the_default_folder_needs_no_option(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = DataFolder(open_folder)
    monkeypatch.setattr("strata.client.data_folder.default_data_folder", lambda: open_folder)
    with pytest.raises(UnreachableError) as raised:
        find(usual)
    assert raised.value.message.endswith("Start it with: strata up")


def test_a_start_in_progress_is_reported(folder: DataFolder) -> None:
    with pytest.raises(UnreachableError, match="is being started"):
        find(folder)


def test_missing_key_in_the_data_folder_is_unauthenticated(folder: DataFolder) -> None:
    folder.announce("127.0.0.1:7600", {})
    folder.secret("api-key", lambda: "none")
    with pytest.raises(UnauthenticatedError):
        find(folder)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", None])
def test_key_file_that_is_not_text_is_named_with_a_remedy(
    running: DataFolder, content: bytes | None
) -> None:
    file = running.secrets / "api-key"
    file.unlink()
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    with pytest.raises(UnauthenticatedError, match=f"{file} is damaged.*start Strata again"):
        find(running)
    assert find(running, api_key="other").api_key == "other"


@pytest.mark.parametrize(
    "address",
    [
        "nonsense",
        "host:",
        ":1",
        "host:99999",
        "host:0",
        "host:²",
        "host:00007600",
        "https://",
        "http://host",
        "https://host/path",
        "https://host:7600?query",
        "https://user@host:7600",
        "https://host name:7600",
        "::1:7600",
        "https://::1",
        "[::1:7600",
        "[host]:7600",
        "https://unix:/socket",
    ],
)
def test_a_wrong_address_is_wrong_usage(running: DataFolder, address: str) -> None:
    with pytest.raises(UsageError, match="is not an address"):
        find(running, address=address, api_key="k")


def test_a_password_in_an_address_is_not_shown(running: DataFolder) -> None:
    with pytest.raises(UsageError) as raised:
        find(running, address="https://ann:secret@host:7600", api_key="k")
    assert "secret" not in raised.value.message
    assert "@host:7600" in raised.value.message


@pytest.mark.parametrize(
    ("address", "target", "tls"),
    [
        ("HTTPS://host", "host:443", True),
        ("Https://[::1]:7600/", "[::1]:7600", True),
        ("HTTP://host:7600", "host:7600", False),
        (" host:7600\n", "host:7600", False),
        ("[::1]:7600", "[::1]:7600", False),
        ("unix:/run/strata.sock", "unix:/run/strata.sock", False),
        ("dns:///host:7600", "dns:///host:7600", False),
    ],
)
def test_schemes_are_case_insensitive_and_blanks_around_an_address_are_ignored(
    running: DataFolder, address: str, target: str, tls: bool
) -> None:
    target_ = find(running, address=address, api_key="k")
    assert (target_.address, target_.tls is not None) == (target, tls)


@pytest.mark.parametrize("options", [{"tls": True}, {"ca_file": Path("ca.pem")}])
def test_tls_without_an_address_is_refused(running: DataFolder, options: dict[str, Any]) -> None:
    for choice in (Choice(**options), Choice(data=running.path, **options)):
        with pytest.raises(UsageError, match="give --address as well"):
            find_target(choice, ClientSettings(data=running.path))
    settings = ClientSettings(address="10.0.0.1:1", api_key="k", data=running.path)
    assert find_target(Choice(tls=True), settings).tls is not None


def test_an_http_address_contradicts_the_option_tls(running: DataFolder) -> None:
    choice = Choice("http://host:7600", "k", tls=True)
    with pytest.raises(UsageError, match="without TLS"):
        find_target(choice, ClientSettings(data=running.path))


def test_a_missing_file_of_authorities_is_wrong_usage(running: DataFolder) -> None:
    choice = Choice("host:7600", "k", ca_file=running.path / "missing.pem")
    with pytest.raises(UsageError, match="There is no file"):
        find_target(choice, ClientSettings(data=running.path))


@pytest.mark.parametrize("key", ["two words", "two\nlines", "ключ", "sk-\x1b[31m", "“sk-strata”"])
def test_a_key_with_characters_invalid_in_headers_is_wrong_usage(
    running: DataFolder, key: str
) -> None:
    with pytest.raises(UsageError, match="API key has blanks"):
        find(running, address="127.0.0.1:7600", api_key=key)
    settings = ClientSettings(address="127.0.0.1:7600", organization_key=key)
    with pytest.raises(UsageError, match="organization key has blanks"):
        find_organization_target(Choice(), settings)


def test_blanks_around_a_key_do_not_count(running: DataFolder) -> None:
    assert find(running, address="127.0.0.1:7600", api_key=" key\n").api_key == "key"


def test_keys_are_not_printed(running: DataFolder) -> None:
    assert "folder-key" not in repr(find(running))


def test_the_organization_key_is_looked_up_like_the_api_key(running: DataFolder) -> None:
    running.secret("organization-key", lambda: "folder-organization-key")
    folder = ClientSettings(data=running.path)
    settings = ClientSettings(
        address="10.0.0.1:1", api_key="project", organization_key="environment", data=running.path
    )

    def key(
        choice: Choice, settings: ClientSettings, organization_key: str = ""
    ) -> tuple[str, str]:
        target = find_organization_target(choice, settings, organization_key)
        return target.address, target.api_key

    assert key(Choice(), folder) == ("127.0.0.1:7600", "folder-organization-key")
    assert key(Choice(api_key="project"), folder)[1] == "folder-organization-key"
    assert key(Choice(), settings) == ("10.0.0.1:1", "environment")
    assert key(Choice(), settings, "option") == ("10.0.0.1:1", "option")
    assert key(Choice(data=running.path), settings)[1] == "folder-organization-key"


def test_the_organization_key_of_the_folder_is_sent_to_no_other_address(
    running: DataFolder,
) -> None:
    running.secret("organization-key", lambda: "folder-organization-key")
    settings = ClientSettings(api_key="project", data=running.path)
    with pytest.raises(UnauthenticatedError) as raised:
        find_organization_target(Choice("10.0.0.2:2"), settings)
    assert "--organization-key" in raised.value.message
    assert "STRATA_ORGANIZATION_KEY" in raised.value.message
