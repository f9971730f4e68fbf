"""Clients that send messages during faults, and record what was acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from faults.live import Client, Live, Turn, dialogue
from strata.api.common.v1 import message_pb2
from strata.protocol.status import FAILED_WRITE, from_rpc_error

_PATIENCE_S = 60.0
# Number of turns by which a client may be ahead of the slowest one. Without this limit, clients
# would send messages as fast as the machine can while one of them waits for a killed process.
_LEAD = 4
# Statuses that a client may get while a process is down; any other status is a defect.
PASSING = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.ABORTED,
}


def is_passing(error: grpc.aio.AioRpcError) -> bool:
    """Returns whether a client may get this error while a process is down.

    If a server stops before a method has received a call, gRPC ends the call as CANCELLED; the
    clients of the product repeat such a call (see `from_rpc_error`). A CANCELLED that a service
    has sent is a defect. gRPC reports a write that fails with the connection as `FAILED_WRITE`.
    """
    if error.code() is grpc.StatusCode.CANCELLED or error.details() == FAILED_WRITE:
        return from_rpc_error(error).lost
    return error.code() in PASSING


@dataclass
class Talk:
    """One client, one agent, one conversation.

    Attributes:
        sent_texts: The messages that were sent and answered, in order.
        failures: Status and details of the errors after which the client repeated its call.
    """

    client: Client
    number: int
    agent_id: str = ""
    conversation_id: str = ""
    sent_texts: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    async def begin(self, **fields: Any) -> None:
        """Creates the agent."""
        agent = await self.client.new_agent(**fields)
        self.agent_id, self.conversation_id = agent.id, agent.default_conversation_id

    async def say(self, text: str) -> Turn:
        """Sends a message until it is answered, each time with the same request id."""
        request_id = f"{self.agent_id}-{len(self.sent_texts)}"
        until = asyncio.get_running_loop().time() + _PATIENCE_S
        while True:
            try:
                turn = await self.client.send(self.agent_id, text, request_id=request_id)
            except grpc.aio.AioRpcError as error:
                assert is_passing(error), error
                assert asyncio.get_running_loop().time() < until, error
                self.failures.append(f"{error.code().name}: {error.details()}")
                await asyncio.sleep(0.1)
                continue
            assert turn.ended_well, turn.finished
            # A second dispatch skips the sequence numbers of events that the first did not store.
            assert turn.durable == sorted(set(turn.durable)), turn.brief
            self.sent_texts.append(text)
            return turn

    async def check(self) -> None:
        """Asserts that the log holds exactly the acknowledged messages, once and in order."""
        log = await self.client.log(self.conversation_id)
        spoken = dialogue(log)
        assert [text for role, text in spoken if role == "user"] == self.sent_texts
        assert [role for role, _ in spoken] == ["user", "assistant"] * len(self.sent_texts)
        for index, message in enumerate(log):
            calls = [p.tool_call.tool_call_id for p in message.parts if p.HasField("tool_call")]
            if calls:
                answer = log[index + 1]
                assert answer.role == message_pb2.ROLE_TOOL
                assert [p.tool_return.tool_call_id for p in answer.parts] == calls
        assert [message.sequence for message in log] == list(range(len(log)))


def plain(number: int, turn: int) -> str:
    """Returns a message without tool calls or, for some turns, one that edits a block."""
    fact = f"talk {number} turn {turn}"
    return f"remember {fact}" if turn % 4 == 2 else fact


@asynccontextmanager
async def talking(
    strata: Live, clients: int = 4, text: Callable[[int, int], str] = plain, **fields: Any
) -> AsyncIterator[list[Talk]]:
    """Runs clients that send messages during the block; checks their logs at its end."""
    address, key = strata.runtime.address, strata.key
    talks = [Talk(Client(address, key), number) for number in range(clients)]
    over = asyncio.Event()

    def counts() -> Iterable[int]:
        return (len(talk.sent_texts) for talk in talks)

    async def run(talk: Talk) -> None:
        while not over.is_set():
            await talk.say(text(talk.number, len(talk.sent_texts)))
            await close_to_the_last(len(talk.sent_texts), counts, over)

    try:
        for talk in talks:
            await talk.begin(**fields)
        async with asyncio.TaskGroup() as group:
            for talk in talks:
                group.create_task(run(talk))
            try:
                yield talks
            finally:
                over.set()
        for talk in talks:
            await talk.check()
    finally:
        for talk in talks:
            await talk.client.channel.close()


async def close_to_the_last(
    count: int, counts: Callable[[], Iterable[int]], over: asyncio.Event
) -> None:
    """Waits while a client is more than a few turns ahead of the slowest one.

    Args:
        count: Number of turns of the client.
        counts: Returns the numbers of turns of all clients.
        over: When set, the wait ends.
    """
    while count > min(counts()) + _LEAD and not over.is_set():
        await asyncio.sleep(0.05)


async def further(talks: list[Talk], turns: int) -> None:
    """Waits until every client has completed a number of further turns."""
    goals = [len(talk.sent_texts) + turns for talk in talks]
    async with asyncio.timeout(_PATIENCE_S):
        while any(len(talk.sent_texts) < goal for talk, goal in zip(talks, goals, strict=True)):
            await asyncio.sleep(0.02)
