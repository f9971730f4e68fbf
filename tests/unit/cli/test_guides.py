"""Every command line in the documents is valid."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strata.cli.main import ENTRIES, _load

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "clients").glob("*/README.md"),
    ]
)
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`(strata [^`]+)`")
_ASSIGNMENT = re.compile(r"[A-Z_]+=.*")
_SEPARATORS = {"|", "||", "&&", ";", "&", ">", ">>", "<"}
# Several verbs in one, such as "strata keys create|list|revoke" or "strata memory log, diff".
_SEVERAL = re.compile(r"\w \| \w|\w\|\w|…|\.\.\.")


def lines_of(text: str) -> Iterator[str]:
    for language, block in _FENCE.findall(text):
        if language not in {"", "sh", "bash", "shell", "console"}:
            continue
        for line in block.replace("\\\n", " ").splitlines():
            command = line.strip().removeprefix("$ ")
            if language == "console" and not line.startswith("$ "):
                continue
            yield command


def commands_of(line: str) -> Iterator[list[str]]:
    """Yields the arguments of each call of strata in a line of a shell."""
    try:
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:
        return
    command: list[str] = []
    for word in [*words, ";"]:
        if word in _SEPARATORS:
            while command and _ASSIGNMENT.fullmatch(command[0]):
                del command[0]
            if command and command[0] == "strata":
                yield command[1:]
            command = []
        else:
            command.append(word)


PRINTED = [
    pytest.param(command, id=f"{page.stem}: {shlex.join(command)}")
    for page in PAGES
    for line in lines_of(page.read_text("utf-8"))
    for command in commands_of(line)
]
MENTIONED = [
    pytest.param(text, id=f"{page.stem}: {text}")
    for page in PAGES
    for text in _INLINE.findall(page.read_text("utf-8"))
    if not _SEVERAL.search(text)
]


loaded = functools.cache(_load)


def parse(words: list[str]) -> tuple[Any, list[str]]:
    """Returns the command of the words and the remaining words; fails if there is none."""
    name, *rest = words
    assert name in {entry.name for entry in ENTRIES}, f"no command {name}"
    command = loaded(name)
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    assert not getattr(command, "commands", {}) or not rest or rest[0].startswith("-"), rest
    return command, rest


@pytest.mark.parametrize("words", PRINTED)
def test_a_printed_command_is_accepted(words: list[str]) -> None:
    command, rest = parse(words)
    if not getattr(command, "commands", {}) or command.invoke_without_command:
        command.make_context(command.name, list(rest))


@pytest.mark.parametrize("text", MENTIONED)
def test_a_mentioned_command_exists_with_its_options(text: str) -> None:
    command, rest = parse(shlex.split(text)[1:])
    known = {
        option
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    for word in rest:
        if word.startswith("--") and word != "--":
            assert word.partition("=")[0] in known, word


def test_the_documents_print_commands() -> None:
    assert len(PRINTED) > 80
    assert len(MENTIONED) > 40
