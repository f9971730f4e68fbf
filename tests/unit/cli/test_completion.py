"""Completion in the shell: commands, options and names of agents, and nothing in case of errors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from child_processes import SOURCE_PATH
from command_line import completion_variables, completions
from strata.cli.agent_names import is_typeable
from strata.cli.main import ENTRIES, _load

# Modules that completion must not load: the services, their engines and libraries.
HEAVY = (
    "strata.gateway", "strata.agent_loop", "strata.recall", "strata.standalone", "sqlalchemy",
    "asyncpg", "numpy", "qdrant_client", "onnxruntime", "openai",
)  # fmt: skip


def test_the_first_word_is_a_command() -> None:
    assert completions("strata ") == [entry.name for entry in ENTRIES]
    assert completions("strata ag") == ["agents"]


def test_words_of_a_group_and_options_are_completed() -> None:
    assert completions("strata memory dif") == ["diff"]
    assert completions("strata memory show --pro") == ["--prompt"]


@pytest.mark.parametrize(
    ("line", "environment"),
    [
        ("strata chat a", {"STRATA_DATA": "{folder}"}),
        ("strata chat --data {folder} a", {}),
        ("strata chat a", {"STRATA_ADDRESS": "127.0.0.1:1", "STRATA_API_KEY": "key"}),
        ("strata runs list --address 127.0.0.1:1 --api-key key --agent a", {}),
        ("strata chat a", {"STRATA_ADDRESS": "no address"}),
        ("strata chat a", {"STRATA_TLS": "maybe"}),
        ("strata chat --ca-file {folder}/none.pem --address https://127.0.0.1:1 a", {}),
    ],
    ids=["data", "--data", "refused", "options", "address", "setting", "authority"],
)
def test_without_a_gateway_there_are_no_names_and_no_message(
    line: str, environment: dict[str, str], tmp_path: Path
) -> None:
    texts = {name: text.format(folder=tmp_path) for name, text in environment.items()}
    assert completions(line.format(folder=tmp_path), **texts) == []


@pytest.mark.parametrize("name", ["ann", "Jörg_2", "support-bot.v1", "a@b", "助手"])
def test_a_name_that_needs_no_quoting_is_offered(name: str) -> None:
    assert is_typeable(name)


@pytest.mark.parametrize(
    "name", ["my agent", "a$(id)", "a`id`", "--all", "it's", 'a"b', "a;b", "a:b", "~root", "a*"]
)
def test_a_name_that_needs_quoting_is_not_offered(name: str) -> None:
    assert not is_typeable(name)


def parameters(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    for parameter in command.params:
        yield path, parameter
    for name, member in getattr(command, "commands", {}).items():
        yield from parameters(member, f"{path} {name}")


def test_every_parameter_that_takes_an_agent_is_completed() -> None:
    taking = [
        (path, parameter)
        for entry in ENTRIES
        for path, parameter in parameters(_load(entry.name), entry.name)
        if "--agent" in parameter.opts or (parameter.metavar or "").startswith("AGENT")
    ]
    assert len(taking) > 60
    without = {path for path, parameter in taking if parameter._custom_shell_complete is None}
    # `strata run` creates the agent, usually before its server runs.
    assert without == {"run"}


@pytest.mark.child_process
def test_completing_a_name_loads_neither_services_nor_engines(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom strata.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print('LOADED', [m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            "PYTHONPATH": SOURCE_PATH,
            "PATH": os.defpath,
            "STRATA_DATA": str(tmp_path),
            **completion_variables("strata memory show a"),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n")[-2] == "LOADED []"
    assert done.stderr == ""
