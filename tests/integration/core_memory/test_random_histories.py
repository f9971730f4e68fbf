"""Random histories of a block in PostgreSQL: earlier states can be read and restored exactly."""

from __future__ import annotations

import random
from typing import Any

import pytest

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.api.core_memory.v1 import context_service_pb2 as context_pb
from strata.protocol.errors import AbortedError, StrataError
from strata.shared.ids import new_id

pytestmark = pytest.mark.asyncio(loop_scope="session")

FIELDS = ("label", "value", "description", "limit", "read_only", "metadata")
WORDS = ("tea", "a\tb", "", "\N{GRINNING FACE}", "x\r", " y ", "&lt;/value>", "tea")
STEPS = 14


class Story:
    """A block with random changes by several editors."""

    def __init__(self, client: Any, seed: int) -> None:
        self._client = client
        self._random = random.Random(seed)
        self._agents = [new_id("agent"), new_id("agent")]
        self.block_id = ""

    async def begin(self) -> None:
        for agent in self._agents:
            await self._client.context.PrepareAgent(context_pb.PrepareAgentRequest(agent_id=agent))
        block = pb.NewBlock(label="human", value="top\nmiddle\nend", limit=120)
        request = pb.CreateBlockRequest(block=block, agent_id=self._agents[0])
        self.block_id = (await self._client.blocks.CreateBlock(request)).block.id
        await self._attach(self._agents[1])

    async def go_on(self) -> None:
        """Tries one random change, which may be refused."""
        kind = self._random.choice((self._append, self._rewrite, self._update, self._undo))
        if self._random.random() < 0.1:
            kind = self._delete
        try:
            await kind()
        except StrataError:
            for agent in self._agents:
                await self._try_attach(agent)

    async def _try_attach(self, agent: str) -> None:
        try:
            await self._attach(agent)
        except StrataError:
            await self._revert(to_revision=self._random.randint(1, 3))

    async def _attach(self, agent: str) -> None:
        request = pb.AttachBlockRequest(agent_id=agent, block_id=self.block_id)
        await self._client.blocks.AttachBlock(request)

    async def _append(self) -> None:
        await self._edit(append=pb.AppendEdit(content=self._words()))

    async def _rewrite(self) -> None:
        edit = pb.StringReplaceEdit(old_string="middle", new_string=self._words())
        await self._edit(string_replace=edit)

    async def _edit(self, **verb: Any) -> None:
        agent = self._random.choice(self._agents)
        listed = await self._client.blocks.ListBlocks(pb.ListBlocksRequest(agent_id=agent))
        label = listed.blocks[0].label if listed.blocks else "none"
        origin = pb.EditOrigin(run_id=self._random.choice(("run-a", "run-b")))
        await self._client.blocks.EditBlock(
            pb.EditBlockRequest(agent_id=agent, label=label, origin=origin, **verb)
        )

    async def _update(self) -> None:
        fields: dict[str, Any] = self._random.choice(
            (
                {"value": f"top\nmiddle\n{self._words()}"},
                {"label": self._random.choice(("human", "friend"))},
                {"limit": self._random.choice((60, 120))},
                {"read_only": self._random.random() < 0.5},
                {"metadata": {self._random.choice("kl"): self._random.choice(("", "1", "2"))}},
                {"description": self._words()},
            )
        )
        await self._client.blocks.UpdateBlock(
            pb.UpdateBlockRequest(block_id=self.block_id, **fields)
        )

    async def _delete(self) -> None:
        await self._client.blocks.DeleteBlock(pb.DeleteBlockRequest(block_id=self.block_id))

    async def _undo(self) -> None:
        revision = self._random.randint(1, 8)
        await self._revert(
            **self._random.choice(
                ({"revision": revision}, {"to_revision": revision}, {"run_id": "run-a"})
            )
        )

    async def _revert(self, **target: Any) -> None:
        await self._client.blocks.RevertBlock(
            pb.RevertBlockRequest(block_id=self.block_id, **target)
        )

    def _words(self) -> str:
        return "\n".join(self._random.choices(WORDS, k=self._random.randint(0, 3)))


async def history(client: Any, block_id: str) -> list[pb.BlockVersion]:
    """Returns the versions of a block, oldest first."""
    request = pb.ListBlockVersionsRequest(block_id=block_id, page_size=500)
    return list((await client.blocks.ListBlockVersions(request)).versions)[::-1]


def fields(message: pb.Block | pb.BlockVersion) -> list[Any]:
    return [getattr(message, name) for name in FIELDS]


async def present(client: Any, block_id: str) -> pb.Block:
    request = pb.ListBlocksRequest(show_deleted=True)
    listed: pb.ListBlocksResponse = await client.blocks.ListBlocks(request)
    (block,) = [block for block in listed.blocks if block.id == block_id]
    return block


@pytest.mark.parametrize("seed", range(6))
async def test_every_earlier_state_can_be_read_and_restored_exactly(client: Any, seed: int) -> None:
    story = Story(client, seed)
    await story.begin()
    for _ in range(STEPS):
        await story.go_on()
    versions = await history(client, story.block_id)
    assert [version.revision for version in versions] == list(range(1, len(versions) + 1))
    now = await present(client, story.block_id)
    assert fields(now) == fields(versions[-1])
    assert all(len(version.value) <= version.limit for version in versions)
    for version, later in zip(versions, [*versions[1:], None], strict=True):
        if later is None or later.create_time.ToNanoseconds() > version.create_time.ToNanoseconds():
            await check_as_of(client, version)
    for target in random.Random(seed).sample(versions, min(4, len(versions))):
        await check_back_to(client, target, versions[-1])


async def check_as_of(client: Any, version: pb.BlockVersion) -> None:
    request = pb.GetBlockRequest(block_id=version.block_id, as_of_time=version.create_time)
    if version.operation == "delete":
        with pytest.raises(StrataError):
            await client.blocks.GetBlock(request)
    else:
        past = (await client.blocks.GetBlock(request)).block
        assert (fields(past), past.revision) == (fields(version), version.revision)


async def check_back_to(client: Any, target: pb.BlockVersion, last: pb.BlockVersion) -> None:
    """Reverts to a version in both ways, and undoes the revert."""
    block_id = target.block_id
    deleted = (await present(client, block_id)).HasField("delete_time")
    await client.blocks.RevertBlock(
        pb.RevertBlockRequest(block_id=block_id, to_revision=target.revision)
    )
    back = await present(client, block_id)
    assert fields(back) == fields(target)
    assert back.HasField("delete_time") is (target.operation == "delete")
    await client.blocks.RevertBlock(
        pb.RevertBlockRequest(block_id=block_id, to_revision=last.revision)
    )
    again = await present(client, block_id)
    assert fields(again) == fields(last)
    assert again.HasField("delete_time") is deleted
    following = (await history(client, block_id))[target.revision :]
    if following and following[0].create_time.ToNanoseconds() > target.create_time.ToNanoseconds():
        await client.blocks.RevertBlock(
            pb.RevertBlockRequest(block_id=block_id, since_time=following[0].create_time)
        )
        assert fields(await present(client, block_id)) == fields(target)
        await client.blocks.RevertBlock(
            pb.RevertBlockRequest(block_id=block_id, to_revision=last.revision)
        )


async def test_a_refused_revert_changes_nothing(client: Any) -> None:
    story = Story(client, 1)
    await story.begin()
    for value in ("a", "b", "c"):
        await client.blocks.UpdateBlock(pb.UpdateBlockRequest(block_id=story.block_id, value=value))
    before = await history(client, story.block_id)
    with pytest.raises(AbortedError):
        await client.blocks.RevertBlock(pb.RevertBlockRequest(block_id=story.block_id, revision=2))
    assert await history(client, story.block_id) == before
