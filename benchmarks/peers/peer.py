"""A peer's program as a child process of the benchmark."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.peers.program import ANSWER, READY, Answer, Request
from benchmarks.processes import ROOT, Child

_ANSWER_S = 120.0


@dataclass(frozen=True, slots=True)
class Peer:
    """A library in one configuration.

    Attributes:
        name: Its name in the report.
        database: Name of its database.
        module: Its program.
        arguments: What this configuration adds to the arguments of the program.
        resumes: Whether it stores the state of a turn, from which the turn can be resumed.
    """

    name: str
    database: str
    module: str
    arguments: Sequence[str] = ()
    resumes: bool = True


def _langgraph(name: str, *, durability: str) -> Peer:
    return Peer(
        name,
        f"peers_langgraph_{durability}",
        "benchmarks.peers.langgraph_turns",
        ("--durability", durability),
    )


PEERS = (
    # The library's default.
    _langgraph("LangGraph", durability="async"),
    _langgraph("LangGraph, durability=exit", durability="exit"),
    Peer("Agents SDK", "peers_agents_sdk", "benchmarks.peers.agents_sdk_turns", resumes=False),
)
LANGGRAPH_SYNC = _langgraph("LangGraph, durability=sync", durability="sync")


class PeerProcess:
    """A running program of a peer."""

    def __init__(self, child: Child) -> None:
        self._child = child

    @classmethod
    async def start(
        cls, python: Path, peer: Peer, arguments: Sequence[str], folder: Path
    ) -> PeerProcess:
        """Starts it.

        Args:
            python: The interpreter of the peers' environment.
            peer: The peer.
            arguments: Arguments that do not depend on the peer.
            folder: Receives its log.
        """
        child = Child(
            ["-m", peer.module, *peer.arguments, *arguments],
            {"PYTHONPATH": str(ROOT)},
            folder / f"{peer.database}.log",
            str(python),
            accepts_lines=True,
        )
        await child.line(READY)
        return cls(child)

    def begin(self, request: Request) -> None:
        """Sends a request without waiting for its answer."""
        self._child.write(json.dumps(asdict(request)))

    async def answer(self, request: Request) -> Answer:
        """Sends a request; returns its answer, which may hold an error."""
        self.begin(request)
        return parse_answer(await self._child.line(ANSWER, seconds=_ANSWER_S))

    async def send(self, conversation: str, texts: Sequence[str]) -> Answer:
        """Sends messages; returns the answer.

        Raises:
            RuntimeError: A message failed.
        """
        answer = await self.answer(Request("send", conversation, list(texts)))
        if answer.error:
            raise RuntimeError(f"a turn of the peer failed: {answer.error}")
        return answer

    async def kill(self) -> None:
        """Ends it by SIGKILL."""
        os.kill(self._child.pid, signal.SIGKILL)
        await self._child.stop()

    async def stop(self) -> None:
        """Ends it."""
        await self._child.stop()


def parse_answer(text: str) -> Answer:
    """Reads the JSON of an answer.

    Raises:
        TypeError: It is not an answer.
        json.JSONDecodeError: It is not JSON.
    """
    values = json.loads(text)
    if not isinstance(values, dict):
        raise TypeError(f"no answer of a peer: {text}")
    return Answer(**values)
