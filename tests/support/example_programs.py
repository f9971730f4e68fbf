"""Runs the example programs of the clients in other languages, which all do the same five tasks."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from child_processes import SOURCE_PATH
from doubles.script import Reply, call, say
from tcp_relay import TcpRelay
from whole_system import System

REPOSITORY = Path(__file__).parents[2]
GUIDES = REPOSITORY / "docs" / "guides"
CLIENTS = REPOSITORY / "clients"

_PLAN = "On Monday you walk along the river, on Tuesday you see the bridges, and then you rest."
_TIMEOUT_S = 60


@dataclass(frozen=True)
class FiveTasks:
    """The results of a program with the five tasks.

    Attributes:
        lines: The lines that it printed.
        connections: The number of connections that it made.
        system: The system message of the first model call.
        clipboard: What its client tool returned to the model.
    """

    lines: Sequence[str]
    connections: int
    system: str
    clipboard: Any


EXPECTED_LINES = [
    "reply: In Lisbon.",
    'call: conversation_search {"query": "trains"}',
    "Nothing about trains.",
    "answer: A train from Lisbon to Porto.",
    "left",
    f"plan: {_PLAN}",
    "refused: AGENT_NOT_FOUND There is no agent nobody.",
]


async def run_five_tasks(system: System, *command: str) -> FiveTasks:
    """Runs a program, and breaks its connection while it waits for the rest of the last reply."""
    held = asyncio.Event()
    model = system.model
    model.script(
        say("In Lisbon."),
        call("conversation_search", {"query": "trains"}),
        say("Nothing about trains."),
        call("read_clipboard", {"format": "text"}),
        say("A train from Lisbon to Porto."),
        Reply(text=_PLAN, held=held),
    )
    async with TcpRelay(system.address) as relay:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=program_environment(
                {"STRATA_ADDRESS": relay.address, "STRATA_API_KEY": system.key}
            ),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        lines: list[str] = []
        async with asyncio.timeout(_TIMEOUT_S):
            async for line in process.stdout:
                lines.append(line.decode().rstrip())
                if lines[-1] == "left":
                    relay.cut()
                    held.set()
            _, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
    first, *_, answered, _ = model.requests
    [clipboard] = answered.answered
    return FiveTasks(lines, relay.count, first.system, json.loads(json.loads(clipboard)["message"]))


async def output_of(environment: Mapping[str, str], *command: str) -> str:
    """Runs a program to its end, and returns its output."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env=program_environment(environment),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(_TIMEOUT_S):
        output, errors = await process.communicate()
    assert process.returncode == 0, f"{output.decode()}\n{errors.decode()}"
    return output.decode()


def program_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment with these variables only."""
    return {
        "PATH": os.defpath,
        "HOME": os.environ["HOME"],
        "PYTHONPATH": SOURCE_PATH,
        **variables,
    }


def java_command(main_class: str, *arguments: str) -> tuple[str, ...]:
    """Returns the command that runs a class of the built Java client."""
    target = CLIENTS / "java" / "target"
    classes = f"{target}/classes:{target}/test-classes:{target}/lib/*"
    # Short programs start faster with one compiler and one thread to collect garbage.
    options = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", classes)
    return (shutil.which("java") or "java", *options, main_class, *arguments)


def code_of_guide(page: str, language: str) -> str:
    """Returns the code blocks of a language in a guide, one after the other."""
    text = (GUIDES / page).read_text("utf-8")
    return "\n".join(re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
