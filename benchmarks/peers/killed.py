"""Kills peers in the middle of a tool call: `python -m benchmarks.peers.killed`.

The tool adds a line to a file and sleeps; then the process gets SIGKILL. A new process sends the
next message to the same conversation, or resumes it by hand. The table shows what is stored, what
the new process gets as reply, and how often the tool ran.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.bench import Model
from benchmarks.peers.environment import InstallError, PeerEnvironment
from benchmarks.peers.peer import LANGGRAPH_SYNC, PEERS, Peer, PeerProcess
from benchmarks.peers.program import Request
from benchmarks.peers.suite import open_database, write_prompt
from benchmarks.system import System
from strata.shared.event_loop import loop_factory

_SYSTEM_PROMPT = "You are a helpful assistant."
_MARKED_S = 60.0
_LOOK_S = 0.05
_SETTLE_S = 1.0
_WIDTH = 180
NEXT = Request("send", "", ["Are you there?"])
RESUME = Request("resume", "")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is left of a conversation whose process was killed in a tool call.

    Attributes:
        peer: Name of the peer.
        then: What the new process did.
        stored_before: Stored messages after the kill.
        reply: Reply or error of the new process.
        marks: How often the tool ran in both processes.
        stored_after: Stored messages at the end.
    """

    peer: str
    then: str
    stored_before: list[str]
    reply: str
    marks: int
    stored_after: list[str]


async def kill_in_a_tool(
    python: Path, peer: Peer, arguments: list[str], folder: Path, following: list[Request]
) -> list[Outcome]:
    """Kills a process in a tool call; makes the following requests in a new process, in order."""
    marks = folder / f"{peer.database}-{following[0].action}.marks"
    arguments = [*arguments, "--marks", str(marks), "--tool-s"]
    conversation = marks.stem
    first = await PeerProcess.start(python, peer, [*arguments, "600"], folder)
    try:
        await first.send(conversation, ["Hello."])
        first.begin(Request("send", conversation, ["mark it, please."]))
        await asyncio.to_thread(_wait_for, marks)
    finally:
        await first.kill()
    second = await PeerProcess.start(python, peer, [*arguments, "0"], folder)
    outcomes = []
    try:
        for request in following:
            stored_messages = await second.answer(Request("stored", conversation))
            answer = await second.answer(Request(request.action, conversation, request.texts))
            after = await second.answer(Request("stored", conversation))
            outcomes.append(
                Outcome(
                    peer.name,
                    " ".join([request.action, *request.texts]),
                    stored_messages.texts,
                    answer.error or " / ".join(answer.texts),
                    len(marks.read_text("utf-8").splitlines()),
                    after.texts,
                )
            )
    finally:
        await second.stop()
    return outcomes


def _wait_for(marks: Path) -> None:
    deadline = time.monotonic() + _MARKED_S
    while not marks.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the tool did not run within {_MARKED_S:.0f} s")
        time.sleep(_LOOK_S)
    # A library may store the call while the tool runs.
    time.sleep(_SETTLE_S)


def main() -> int:
    """Kills every peer in a tool call and prints what is left; returns the exit code."""
    environment = PeerEnvironment()
    try:
        environment.prepare()
    except InstallError as error:
        print(f"the packages of the peers cannot be installed: {error}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="strata-killed-") as name:
        folder = Path(name)
        # PostgreSQL runs as another user when we are root, and must get to its data.
        folder.chmod(0o711)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            outcomes = runner.run(_run(environment.python, folder))
    Console(width=None if Console().is_terminal else _WIDTH, highlight=False).print(
        _table(outcomes)
    )
    return 0


async def _run(python: Path, folder: Path) -> list[Outcome]:
    outcomes = []
    async with AsyncExitStack() as stack:
        model = await Model.start(folder, stack)
        system = System(folder / "data", model.url, split=False)
        await system.start()
        stack.push_async_callback(system.stop)
        prompt = ["--system-prompt", str(write_prompt(folder, _SYSTEM_PROMPT))]
        for peer in (*PEERS, LANGGRAPH_SYNC):
            arguments = [*await open_database(system, model.url, peer), *prompt]
            for following in ([NEXT, RESUME], [RESUME, NEXT]) if peer.resumes else ([NEXT],):
                outcomes += await kill_in_a_tool(python, peer, arguments, folder, following)
    return outcomes


def _table(outcomes: list[Outcome]) -> Table:
    table = Table(pad_edge=False, header_style="bold", show_lines=True)
    for title in ("peer", "stored after the kill", "then", "reply", "marks", "stored at the end"):
        table.add_column(title)
    for outcome in outcomes:
        table.add_row(
            outcome.peer,
            "\n".join(outcome.stored_before),
            outcome.then,
            outcome.reply,
            str(outcome.marks),
            "\n".join(outcome.stored_after),
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
