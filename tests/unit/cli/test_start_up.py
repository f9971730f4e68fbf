"""``strata --help`` starts without the modules that single commands import."""

from __future__ import annotations

import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from typer.testing import CliRunner

from child_processes import SOURCE_PATH
from strata.cli.main import ENTRIES, _load, app
from strata.cli.output import console
from strata.standalone.data_folder import DataFolder

HEAVY = ("grpc", "sqlalchemy", "pydantic", "google.protobuf", "asyncpg", "numpy")


def run(*arguments: str, program: str = "from strata.cli.main import main; main()") -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={"PYTHONPATH": SOURCE_PATH, "PATH": os.defpath},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.child_process
def test_help_imports_no_heavy_modules() -> None:
    program = (
        "import sys\nfrom strata.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print('LOADED', [m for m in {HEAVY!r} if m in sys.modules])"
    )
    out = run("--help", program=program)
    assert "Agents and their memory" in out
    assert out.splitlines()[-1] == "LOADED []"


@pytest.mark.child_process
def test_the_version_option_prints_the_version() -> None:
    assert run("--version").startswith("strata ")


@pytest.mark.parametrize("name", [entry.name for entry in ENTRIES])
def test_every_command_can_be_loaded(name: str) -> None:
    command = _load(name)
    assert command.name == name
    assert command.help


@pytest.mark.parametrize(
    "arguments",
    [
        ("agents", "create", ""),
        ("agents", "show", " "),
        ("chat", "", "--create"),
        ("agents", "list", "--data", ""),
        ("up", "--data", ""),
        ("run", "--data", " "),
    ],
)
def test_a_blank_name_or_folder_is_wrong_usage(arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 2, done.output
    assert "blank" in done.stderr


@pytest.mark.parametrize("name", [entry.name for entry in ENTRIES])
def test_only_the_top_level_program_offers_completion(name: str) -> None:
    assert "--install-completion" not in CliRunner().invoke(app, [name, "--help"]).stdout


@pytest.mark.parametrize(
    ("name", "value"), [("STRATA_PORT", "abc"), ("STRATA_TLS", "maybe"), ("STRATA_PORT", "70000")]
)
def test_an_invalid_setting_is_wrong_usage_and_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    done = CliRunner().invoke(app, ["up", "--data", "/dev/null/nowhere"])
    assert done.exit_code == 2
    assert f"Error: A setting is wrong. {name}: " in done.stderr


def test_an_invalid_setting_of_a_service_is_reported_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, open_folder: Path
) -> None:
    monkeypatch.setenv("STRATA_LOCAL_DEMO", "off")
    monkeypatch.setenv("STRATA_RECALL_POOL_SIZE", "many")
    data = open_folder / "[data]"
    done = CliRunner().invoke(app, ["up", "--data", str(data)])
    assert done.exit_code == 2, done.output
    assert "STRATA_RECALL_POOL_SIZE" in done.stderr
    assert not any((data / "postgres").iterdir())


def test_a_folder_in_use_is_named_as_it_is_written(open_folder: Path) -> None:
    folder = DataFolder(open_folder / "[bold]")
    folder.open()
    try:
        done = CliRunner().invoke(app, ["up", "--data", str(folder.path)])
    finally:
        folder.close()
    assert done.exit_code == 1
    assert str(folder.path) in done.stderr


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["agents", "create", "ada"], "--max-output-tokens"),
        (["agents", "update", "ada"], "--summary-chars"),
        (["agents", "compact", "ada"], "--chars"),
        (["memory", "create", "ada", "human"], "--limit"),
        (["recall", "expand", "message"], "--from"),
        (["recall", "retention"], "--days"),
        (["archival", "archives", "create", "notes"], "--days"),
        (["archival", "archives", "update", "notes"], "--days"),
        (["tools", "search", "clock"], "--limit"),
    ],
)
def test_a_number_that_no_request_can_have_is_wrong_usage(command: list[str], option: str) -> None:
    done = CliRunner().invoke(app, [*command, f"{option}={2**63}"])
    assert done.exit_code == 2, done.output
    assert option in done.stderr


@pytest.mark.parametrize("name", ["x" * 3000, "loop"])
def test_a_path_that_cannot_be_resolved_is_wrong_usage(open_folder: Path, name: str) -> None:
    (open_folder / "loop").symlink_to("loop")
    done = CliRunner().invoke(app, ["agents", "list", "--data", str(open_folder / name / "data")])
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith("Error: ")
    assert str(open_folder) in done.stderr


def test_output_is_printed_in_a_terminal_without_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    file = StringIO()
    monkeypatch.setattr(sys, "stdout", file)
    console().print("text")
    assert file.getvalue() == "text\n"
