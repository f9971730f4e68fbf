"""Core memory is killed during many edits: each edit is stored completely and once, or not."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import grpc
import psutil
import pytest

from faults.live import Client, Live
from faults.surviving import until_answered
from faults.victims import kill
from strata.api.core_memory.v1 import block_service_pb2 as pb

# The first test of a shape starts the Strata of all.
pytestmark = pytest.mark.timeout(240)

HANDS = 40
BLOCKS = ("plans", "people", "places", "projects")
SLOTS = 90
_MARK = re.compile(r"edit (\d{4}) (opens|closes)")
_PASSING = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}


@dataclass
class Editing:
    """Many edits of shared blocks by the agents that share them.

    Attributes:
        client: A client of the gateway.
        agents: The agents; all blocks are attached to each of them.
        acknowledged: Edits whose call succeeded.
        unknown: Edits whose call failed, so that they may be stored or not.
    """

    client: Client
    agents: Sequence[str]
    acknowledged: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)

    async def run(self, numbers: Iterable[int]) -> None:
        """Makes the edits, many at the same time, each with one request."""
        waiting = iter(numbers)

        async def hand() -> None:
            for number in waiting:
                try:
                    await self.client.blocks.EditBlock(self.request(number), **self.client.call)
                except grpc.aio.AioRpcError as error:
                    assert error.code() in _PASSING, error
                    self.unknown.add(number)
                    await asyncio.sleep(0.05)
                else:
                    self.acknowledged.add(number)

        async with asyncio.TaskGroup() as group:
            for _ in range(HANDS):
                group.create_task(hand())

    async def reached(self, count: int) -> None:
        """Waits until `count` edits are acknowledged."""
        while len(self.acknowledged) < count:
            await asyncio.sleep(0.002)

    def request(self, number: int) -> pb.EditBlockRequest:
        """Returns the request of edit `number`: always the same for the same number."""
        mark = f"edit {number:04} opens\nedit {number:04} closes"
        # The edits of a block alternate: at the end, at the beginning, in a slot.
        turn = number // len(BLOCKS)
        request = pb.EditBlockRequest(
            request_id=f"{self.agents[0]}-edit-{number}",
            agent_id=self.agents[number % len(self.agents)],
            label=label_of(number),
        )
        if turn % 3 == 0:
            request.append.content = mark
        elif turn % 3 == 1:
            request.insert.CopyFrom(pb.InsertEdit(new_string=mark, insert_line=0))
        else:
            slot = f"slot {turn // 3:02}: "
            request.string_replace.CopyFrom(
                pb.StringReplaceEdit(old_string=f"{slot}free", new_string=f"{slot}{mark}")
            )
        return request


def label_of(number: int) -> str:
    return BLOCKS[number % len(BLOCKS)]


@pytest.mark.parametrize("live", [True], ids=["split"], indirect=True)
@pytest.mark.parametrize("edits", [400, pytest.param(1000, marks=pytest.mark.slow)])
async def test_edits_survive_the_death_of_core_memory(live: Live, edits: int) -> None:
    async with live.client() as client:
        blocks, agents = await _shared_blocks(client)
        editing = Editing(client, agents)
        work = asyncio.create_task(editing.run(range(edits)))
        await editing.reached(edits // 3)
        victim = kill(live, "core_memory").pid
        assert len(editing.acknowledged) + len(editing.unknown) < edits
        await work
        # The restarted process may not accept calls yet.
        any_block = pb.GetBlockRequest(block_id=next(iter(blocks.values())))
        await until_answered(lambda: client.blocks.GetBlock(any_block, **client.call))
        assert not psutil.pid_exists(victim)

        for label, block_id in blocks.items():
            there = await _whole_edits(client, block_id)
            mine = {number for number in editing.acknowledged if label_of(number) == label}
            lost = {number for number in editing.unknown if label_of(number) == label}
            assert mine <= there
            assert there - mine <= lost

        # Requests without an answer are sent again; no edit is made twice.
        again = Editing(client, agents)
        await again.run([*editing.unknown, *range(0, edits, 50)])
        assert again.unknown == set()
        for label, block_id in blocks.items():
            expected = {number for number in range(edits) if label_of(number) == label}
            assert await _whole_edits(client, block_id) == expected


async def _shared_blocks(client: Client) -> tuple[dict[str, str], list[str]]:
    """Creates the blocks, and three agents that share all of them."""
    blocks = {}
    for label in BLOCKS:
        value = "\n".join(f"slot {number:02}: free" for number in range(SLOTS))
        block = pb.NewBlock(label=label, value=value)
        made = await client.blocks.CreateBlock(pb.CreateBlockRequest(block=block), **client.call)
        blocks[label] = made.block.id
    agents = []
    for _ in range(3):
        agent = await client.new_agent()
        agents.append(agent.id)
        for block_id in blocks.values():
            request = pb.AttachBlockRequest(agent_id=agent.id, block_id=block_id)
            await client.blocks.AttachBlock(request, **client.call)
    return blocks, agents


async def _whole_edits(client: Client, block_id: str) -> set[int]:
    """Returns the edits in a block; asserts that each is there once, whole, and in the history."""
    request = pb.GetBlockRequest(block_id=block_id)
    block = (await client.blocks.GetBlock(request, **client.call)).block
    marks = [(int(number), end) for number, end in _MARK.findall(block.value)]
    numbers = [number for number, end in marks if end == "opens"]
    assert len(set(numbers)) == len(numbers)
    assert marks == [(number, end) for number in numbers for end in ("opens", "closes")]

    versions = await _history(client, block_id)
    assert versions[-1].value == block.value
    assert [version.revision for version in versions] == list(range(1, block.revision + 1))
    # One version is from the creation, one from each edit.
    assert len(versions) == 1 + len(numbers)
    for before, after in itertools.pairwise(versions):
        added = set(_MARK.findall(after.value)) - set(_MARK.findall(before.value))
        assert len({number for number, _ in added}) == 1
        assert len(added) == 2
    return set(numbers)


async def _history(client: Client, block_id: str) -> list[pb.BlockVersion]:
    """Returns all versions of a block, oldest first."""
    versions: list[pb.BlockVersion] = []
    token = ""
    while True:
        request = pb.ListBlockVersionsRequest(block_id=block_id, page_size=100, page_token=token)
        page = await client.blocks.ListBlockVersions(request, **client.call)
        versions.extend(page.versions)
        token = page.next_page_token
        if not token:
            return versions[::-1]
