"""The benchmark of other libraries, without these libraries."""

from __future__ import annotations

import ast
import io
import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytest
from benchmarks import __main__ as program_of_benchmarks
from benchmarks.bench import Bench
from benchmarks.peers import environment as environment_module
from benchmarks.peers import program, suite
from benchmarks.peers.environment import REQUIREMENTS, InstallError, PeerEnvironment
from benchmarks.peers.peer import LANGGRAPH_SYNC, PEERS, parse_answer
from benchmarks.peers.program import Answer, Request
from packaging.requirements import Requirement


class Echo:
    """Conversations that echo messages; the message "fail" fails."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    async def send(self, conversation: str, text: str) -> str:
        if text == "fail":
            raise ValueError("no reply")
        self.messages.append(text)
        return f"{conversation}: {text}"

    async def resume(self, conversation: str) -> str:
        return f"{conversation} goes on"

    async def stored(self, conversation: str) -> list[str]:
        return [f"{conversation} {text}" for text in self.messages]


async def serve(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *requests: Request
) -> list[Answer]:
    """Serves requests as a program does; returns the answers as the benchmark reads them."""
    lines = "".join(f"{json.dumps(asdict(request))}\n" for request in requests)
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    await program.serve(Echo())
    ready, *answers = capsys.readouterr().out.splitlines()
    assert ready == program.READY
    return [parse_answer(line.removeprefix(program.ANSWER)) for line in answers]


async def test_answers_of_a_program_are_parsed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sent, resumed, stored = await serve(
        monkeypatch,
        capsys,
        Request("send", "c", ["one", "two"]),
        Request("resume", "c"),
        Request("stored", "c"),
    )
    assert sent.texts == ["c: one", "c: two"]
    assert len(sent.turn_ms) == 2
    assert sent.error == ""
    assert resumed.texts == ["c goes on"]
    assert stored.texts == ["c one", "c two"]
    assert stored.turn_ms == []


async def test_an_answer_has_the_error_of_a_turn_and_the_earlier_replies(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed, following = await serve(
        monkeypatch,
        capsys,
        Request("send", "c", ["one", "fail", "two"]),
        Request("send", "c", ["three"]),
    )
    assert failed.error == "ValueError: no reply"
    assert failed.texts == ["c: one"]
    assert following.texts == ["c: three"]


@pytest.mark.parametrize("line", ["", "{", '{"turns": []}', "[1]"])
def test_lines_in_another_format_are_refused(line: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        parse_answer(line)


def test_system_text_is_that_of_the_request_of_strata() -> None:
    messages = [
        {"role": "system", "content": "You remember."},
        {"role": "user", "content": "Hello."},
        {"role": "system", "content": "A summary."},
    ]
    body = json.dumps({"messages": messages}).encode()
    assert suite.system_text(body) == "You remember.\n\nA summary."


def test_the_peers_suite_runs_by_default_only_if_installed() -> None:
    chosen = program_of_benchmarks.chosen_suites
    assert "peers" not in chosen([], peers_exist=False)
    assert "peers" in chosen([], peers_exist=True)
    assert chosen(["plain_turn", "peers"], peers_exist=False) == ["plain_turn", "peers"]
    assert len(chosen([], peers_exist=False)) == len(chosen([], peers_exist=True)) - 1


async def test_the_suite_is_skipped_with_a_reason_if_nothing_can_be_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: PeerEnvironment) -> None:
        raise InstallError("no network")

    monkeypatch.setattr(PeerEnvironment, "prepare", fail)
    # The suite ends before it uses the run.
    await suite.peers(cast("Bench", None))
    assert capsys.readouterr().err == "... peers are left out: no network\n"


def test_the_environment_is_rebuilt_when_its_packages_change(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands: list[str] = []

    def make(*arguments: str) -> None:
        commands.append(arguments[0])
        (tmp_path / "peers").mkdir(exist_ok=True)

    monkeypatch.setattr(environment_module, "_uv", make)
    environment = PeerEnvironment(tmp_path / "peers")
    assert not environment.exists
    environment.prepare()
    assert environment.exists
    assert commands == ["venv", "pip"]
    environment.prepare()
    assert commands == ["venv", "pip"]
    changed = tmp_path / "requirements.txt"
    changed.write_text("langgraph==0\n")
    monkeypatch.setattr(environment_module, "REQUIREMENTS", changed)
    environment.prepare()
    assert commands == ["venv", "pip", "venv", "pip"]


def test_an_environment_whose_installation_failed_does_not_exist(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def make(*arguments: str) -> None:
        if arguments[0] == "pip":
            raise InstallError("no network")
        (tmp_path / "peers").mkdir()

    monkeypatch.setattr(environment_module, "_uv", make)
    environment = PeerEnvironment(tmp_path / "peers")
    with pytest.raises(InstallError):
        environment.prepare()
    assert not environment.exists


def test_every_package_is_pinned_and_no_line_names_a_place_to_load_from() -> None:
    requirements = [Requirement(line) for line in REQUIREMENTS.read_text("utf-8").splitlines()]
    assert all(str(requirement.specifier).startswith("==") for requirement in requirements)
    assert all(requirement.url is None for requirement in requirements)
    lines = REQUIREMENTS.with_suffix(".in").read_text("utf-8").splitlines()
    direct = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert {requirement.name for requirement in direct} <= {one.name for one in requirements}


def test_each_peer_has_its_own_database() -> None:
    databases = [peer.database for peer in (*PEERS, LANGGRAPH_SYNC)]
    assert len(set(databases)) == len(databases)


def imported(module: str) -> set[str]:
    """Returns the top names and modules of the project that a module imports."""
    tree = ast.parse((REQUIREMENTS.parent / f"{module}.py").read_text("utf-8"))
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.database)
def test_peer_programs_import_only_packages_of_their_environment(peer: Any) -> None:
    ours = re.compile(r"(benchmarks|strata)\b")
    names = imported(peer.module.rpartition(".")[2])
    assert {name for name in names if ours.match(name)} == {"benchmarks.peers.program"}
    standard = sys.stdlib_module_names | {"uvloop"}
    assert {name.partition(".")[0] for name in imported("program")} <= standard
