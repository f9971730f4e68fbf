"""The links that `strata up` and `strata console` print."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from strata.cli.console_link import new_link, show_console
from strata.cli.failures import EXIT_UNREACHABLE, EXIT_USAGE
from strata.cli.main import app
from strata.gateway.console.sealing import Sealer
from strata.gateway.console.sign_in_links import LinkTokens
from strata.shared.clock import SystemClock
from strata.standalone.data_folder import DataFolder

KEY = "sk-strata-0123456789"


@pytest.fixture
def folder(open_folder: Path) -> Iterator[DataFolder]:
    """An open data folder with its secrets."""
    opened = DataFolder(open_folder / "data")
    opened.open()
    opened.secret("key-pepper")
    opened.secret("api-key", lambda: KEY)
    yield opened
    opened.close()


def key_in(link: str, folder: DataFolder) -> str | None:
    """Returns the key that the server of a folder reads from a link."""
    sealer = Sealer(folder.secret("key-pepper"), SystemClock())
    return LinkTokens(sealer, SystemClock(), 0.0).take(link.partition("token=")[2])


def test_up_prints_the_address_and_a_link_without_the_key(folder: DataFolder) -> None:
    out = StringIO()
    show_console(Console(file=out, soft_wrap=True), folder, "http://0.0.0.0:7680")
    _, link = out.getvalue().strip().split("\n")
    assert "http://0.0.0.0:7680/console" in out.getvalue()
    assert link.startswith("http://127.0.0.1:7680/console/sign-in/link?token=")
    assert KEY not in out.getvalue()
    assert key_in(link, folder) == KEY


def test_link_signs_in_if_an_editor_ended_the_lines_of_the_secrets(folder: DataFolder) -> None:
    for name in ("key-pepper", "api-key"):
        file = folder.secrets / name
        file.write_text(f"{file.read_text()}\n")
    assert key_in(new_link(folder, "http://127.0.0.1:7680"), folder) == KEY


def test_command_prints_a_new_link_of_the_running_server(folder: DataFolder) -> None:
    folder.announce("127.0.0.1:7600", {}, http_url="http://127.0.0.1:7680")
    arguments = ["console", "--data", str(folder.path)]
    first, second = (CliRunner().invoke(app, arguments).stdout.strip() for _ in range(2))
    assert first != second
    assert key_in(first, folder) == key_in(second, folder) == KEY


def test_command_without_a_server_prints_how_to_start_one(folder: DataFolder) -> None:
    done = CliRunner().invoke(app, ["console", "--data", str(folder.path)])
    assert done.exit_code == EXIT_UNREACHABLE
    assert "Start it with strata up" in done.stderr


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_the_command_needs_the_secrets_of_the_folder(
    folder: DataFolder, content: bytes | None
) -> None:
    folder.announce("127.0.0.1:7600", {}, http_url="http://127.0.0.1:7680")
    (folder.secrets / "key-pepper").unlink()
    if content is not None:
        (folder.secrets / "key-pepper").write_bytes(content)
    done = CliRunner().invoke(app, ["console", "--data", str(folder.path)])
    assert done.exit_code == EXIT_USAGE
    assert "cannot be read" in done.stderr
