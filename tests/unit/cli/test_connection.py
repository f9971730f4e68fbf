"""Which gateway a command talks to, and with which key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strata.cli.connection import Choice, Target, find_target
from strata.cli.failures import UsageError
from strata.cli.settings import CliSettings
from strata.client.errors import UnreachableError
from strata.embedded.data_folder import DataFolder
from strata.shared.errors import UnauthenticatedError


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
    return find_target(Choice(address, api_key), CliSettings(data=folder.path))


def found(choice: Choice, settings: CliSettings) -> tuple[str, str]:
    target = find_target(choice, settings)
    return target.address, target.api_key


def test_the_data_folder_tells_address_and_key(running: DataFolder) -> None:
    target = find(running)
    assert (target.address, target.api_key) == ("127.0.0.1:7600", "folder-key")


def test_options_come_before_the_environment_and_that_before_the_folder(
    running: DataFolder,
) -> None:
    settings = CliSettings(address="10.0.0.1:1", api_key="environment", data=running.path)
    assert found(Choice(), settings) == ("10.0.0.1:1", "environment")
    assert found(Choice("10.0.0.2:2"), settings) == ("10.0.0.2:2", "environment")
    assert found(Choice("10.0.0.2:2", "mine"), settings) == ("10.0.0.2:2", "mine")


def test_a_folder_that_is_named_comes_before_the_environment(running: DataFolder) -> None:
    settings = CliSettings(address="10.0.0.1:1", api_key="environment")
    assert found(Choice(data=running.path), settings) == ("127.0.0.1:7600", "folder-key")
    given = Choice("10.0.0.2:2", data=running.path)
    assert found(given, settings) == ("10.0.0.2:2", "environment")


def test_the_key_of_the_folder_goes_nowhere_else(running: DataFolder) -> None:
    assert find(running, address="127.0.0.1:7600").api_key == "folder-key"
    with pytest.raises(UnauthenticatedError, match="STRATA_API_KEY"):
        find(running, address="10.0.0.1:7600")


def test_nothing_runs(open_folder: Path) -> None:
    with pytest.raises(UnreachableError, match="Start it with: strata up"):
        find(DataFolder(open_folder / "none"))


def test_a_start_under_way_is_told(folder: DataFolder) -> None:
    with pytest.raises(UnreachableError, match="is being started"):
        find(folder)


def test_a_key_that_is_not_made_yet_is_no_key(folder: DataFolder) -> None:
    folder.announce("127.0.0.1:7600", {})
    folder.secret("api-key", lambda: "none")
    with pytest.raises(UnauthenticatedError):
        find(folder)


@pytest.mark.parametrize("address", ["nonsense", "host:", ":1", "host:99999", "https://host:1"])
def test_a_wrong_address_is_wrong_usage(running: DataFolder, address: str) -> None:
    with pytest.raises(UsageError):
        find(running, address=address, api_key="k")


def test_keys_are_not_printed(running: DataFolder) -> None:
    assert "folder-key" not in repr(find(running))
