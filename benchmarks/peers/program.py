"""Code of the programs of all peers: requests on standard input, answers on standard output.

A program runs in the environment of its library, so this module imports the standard library only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

READY = "READY"
ANSWER = "ANSWER"
MARKING_TOOL = "leave_mark"

Tool = Callable[[], Awaitable[str]]


class NoRunStateError(Exception):
    """The library stores no state of a turn that could be resumed."""


class Conversations(Protocol):
    """The conversations of a library, stored in PostgreSQL."""

    async def send(self, conversation: str, text: str) -> str:
        """Sends a message; returns the reply, read to the end of its stream."""

    async def resume(self, conversation: str) -> str:
        """Continues an interrupted turn without a new message; returns the reply.

        Raises:
            NoRunStateError: The library stores no state of a turn.
        """

    async def stored(self, conversation: str) -> list[str]:
        """Describes each stored message of a conversation."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request of the benchmark to a program.

    Attributes:
        action: "send", "resume" or "stored".
        conversation: Name of the conversation.
        texts: Messages to send, one after the other.
    """

    action: str
    conversation: str
    texts: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a program.

    Attributes:
        turn_ms: Time of each turn in milliseconds.
        cpu_ms: Processor time that the process used for the request, in milliseconds.
        texts: Replies of the model, or the stored messages.
        error: Type and text of the exception that ended the request; empty without one.
    """

    turn_ms: list[float] = field(default_factory=list)
    cpu_ms: float = 0.0
    texts: list[str] = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of a program.

    Attributes:
        model_url: Base URL of the Chat Completions API.
        database_url: URL of a database that the program may fill.
        system_prompt: The system prompt.
        durability: When LangGraph stores checkpoints.
        marks: File to which the tool adds a line; without it the model is offered no tool.
        tool_s: Seconds that the tool takes after it has added its line.
    """

    model_url: str
    database_url: str
    system_prompt: str
    durability: str
    marks: Path | None
    tool_s: float

    def tools(self) -> list[Tool]:
        """Returns the tools that the model is offered."""
        return [] if self.marks is None else [_marking_tool(self.marks, self.tool_s)]


def read_options() -> Options:
    """Reads the arguments of the process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-url", required=True)
    parser.add_argument("--database-url", required=True)
    parser.add_argument("--system-prompt", type=Path, required=True, metavar="FILE")
    parser.add_argument("--durability", default="async")
    parser.add_argument("--marks", type=Path, metavar="FILE")
    parser.add_argument("--tool-s", type=float, default=0.0)
    values = vars(parser.parse_args())
    values["system_prompt"] = values["system_prompt"].read_text("utf-8")
    return Options(**values)


def run(main: Coroutine[Any, Any, None]) -> None:
    """Runs a program on the event loop that Strata uses."""
    import uvloop  # noqa: PLC0415 - this module is imported where uvloop is not needed

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


async def serve(conversations: Conversations) -> None:
    """Answers the requests on standard input until it ends."""
    print(READY, flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        answer = await _answer(conversations, Request(**json.loads(line)))
        print(ANSWER, json.dumps(asdict(answer)), flush=True)


async def _answer(conversations: Conversations, request: Request) -> Answer:
    turn_ms: list[float] = []
    texts: list[str] = []
    cpu_before = time.process_time()
    error = ""
    try:
        if request.action == "stored":
            texts = await conversations.stored(request.conversation)
        elif request.action == "resume":
            texts = [await conversations.resume(request.conversation)]
        for text in request.texts:
            started = time.perf_counter()
            texts.append(await conversations.send(request.conversation, text))
            turn_ms.append((time.perf_counter() - started) * 1000)
    # The benchmark reports any exception of the library.
    except Exception as raised:  # noqa: BLE001
        error = f"{type(raised).__name__}: {raised}"
    return Answer(turn_ms, (time.process_time() - cpu_before) * 1000, texts, error)


def _marking_tool(marks: Path, seconds: float) -> Tool:
    async def leave_mark() -> str:
        """Leaves a mark."""
        await asyncio.to_thread(_append, marks)
        await asyncio.sleep(seconds)
        return "The mark is there."

    return leave_mark


def _append(marks: Path) -> None:
    with marks.open("a", encoding="utf-8") as file:
        file.write("mark\n")


def describe_calls(names: list[Any]) -> str:
    """Describes the tool calls of a stored message."""
    return f" calls {', '.join(map(str, names))}" if names else ""
