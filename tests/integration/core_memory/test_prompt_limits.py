"""Every RPC refuses changes that make an agent's memory too large for its prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from integration.core_memory.block_calls import prepare_blocks
from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.api.core_memory.v1 import context_service_pb2 as context_pb
from strata.protocol.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    Reason,
)
from strata.shared.ids import new_id

pytestmark = pytest.mark.asyncio(loop_scope="session")

LIMIT = 1_000
LONG = "x" * 700


class LimitedMemory:
    """An agent with a limit, and one without that shares a block with it."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.agent, self.other = new_id("agent"), new_id("agent")
        self.block = pb.Block()
        self.shared = pb.Block()

    async def begin(self) -> LimitedMemory:
        await prepare_blocks(self.client, self.other)
        (self.shared,) = await prepare_blocks(
            self.client, new_id("agent"), blocks=[new("shared", "line one\nline two")]
        )
        await self.attach(self.shared, self.other)
        blocks = await prepare_blocks(
            self.client,
            self.agent,
            blocks=[new("human", "line one\nline two")],
            block_ids=[self.shared.id],
            prompt_limit=context_pb.PromptLimit(bytes=LIMIT),
        )
        self.block = blocks[0]
        return self

    async def edit(self, agent: str = "", label: str = "human", **verb: Any) -> pb.Block:
        request = pb.EditBlockRequest(agent_id=agent or self.agent, label=label, **verb)
        response: pb.EditBlockResponse = await self.client.blocks.EditBlock(request)
        return response.block

    async def attach(self, block: pb.Block, agent: str = "") -> None:
        request = pb.AttachBlockRequest(agent_id=agent or self.agent, block_id=block.id)
        await self.client.blocks.AttachBlock(request)

    async def detach(self, block: pb.Block, agent: str = "") -> None:
        request = pb.DetachBlockRequest(agent_id=agent or self.agent, block_id=block.id)
        await self.client.blocks.DetachBlock(request)

    async def create(self, value: str, *, attached: bool) -> pb.Block:
        request = pb.CreateBlockRequest(
            block=new("more", value), agent_id=self.agent if attached else ""
        )
        response: pb.CreateBlockResponse = await self.client.blocks.CreateBlock(request)
        return response.block

    async def update(self, block: pb.Block, **fields: Any) -> None:
        request = pb.UpdateBlockRequest(block_id=block.id, **fields)
        await self.client.blocks.UpdateBlock(request)

    async def limit(self, most: int | None, **more: Any) -> int | None:
        """Sets or raises the limit; returns the previous one."""
        limit = None if most is None else context_pb.PromptLimit(bytes=most)
        request = context_pb.LimitPromptRequest(agent_id=self.agent, prompt_limit=limit, **more)
        response = await self.client.context.LimitPrompt(request)
        return response.previous_limit.bytes if response.HasField("previous_limit") else None

    async def everything(self) -> list[Any]:
        """Returns all blocks of the project with all versions, and the blocks of the agent."""
        listed = await self.client.blocks.ListBlocks(pb.ListBlocksRequest(show_deleted=True))
        versions = [
            (await self.client.blocks.ListBlockVersions(request)).versions
            for request in (pb.ListBlockVersionsRequest(block_id=b.id) for b in listed.blocks)
        ]
        mine = await self.client.blocks.ListBlocks(pb.ListBlocksRequest(agent_id=self.agent))
        return [listed, versions, mine]

    async def refuses(self, attempt: Callable[[], Awaitable[Any]]) -> FailedPreconditionError:
        """Asserts that an attempt is refused and changes nothing."""
        before = await self.everything()
        with pytest.raises(FailedPreconditionError) as caught:
            await attempt()
        error = caught.value
        assert error.reason is Reason.CONTEXT_WINDOW_EXCEEDED
        assert await self.everything() == before
        assert (error.metadata["agent_id"], error.metadata["limit"]) == (self.agent, str(LIMIT))
        over = int(error.metadata["size"]) - LIMIT
        assert error.message == (
            "Core memory would be too large for the context window: all blocks of "
            f"{self.agent} together would take {LIMIT + over} bytes, {over} more than the {LIMIT} "
            f"that there is space for. Nothing was changed: shorten a memory block by at least "
            f"{over} bytes or detach one, or write less."
        )
        return error


@pytest_asyncio.fixture(loop_scope="session")
async def memory(client: Any, project: str) -> LimitedMemory:
    return await LimitedMemory(client).begin()


def new(label: str, value: str = "") -> pb.NewBlock:
    return pb.NewBlock(label=label, value=value, description=f"About {label}.")


def patch(text: str) -> dict[str, Any]:
    return {"patch": pb.PatchEdit(patch=text)}


VERBS: dict[str, tuple[str, dict[str, Any]]] = {
    "append": ("human", {"append": pb.AppendEdit(content=LONG)}),
    "replace": ("human", {"replace": pb.ReplaceEdit(old_content="one", new_content=LONG)}),
    "string_replace": (
        "human",
        {"string_replace": pb.StringReplaceEdit(old_string="one", new_string=LONG)},
    ),
    "insert": ("human", {"insert": pb.InsertEdit(new_string=LONG, insert_line=0)}),
    "rethink": ("human", {"rethink": pb.RethinkEdit(new_memory=LONG)}),
    "rethink of a new block": ("notes", {"rethink": pb.RethinkEdit(new_memory=LONG)}),
    "create": ("notes", {"create": pb.CreateEdit(description="Notes.", file_text=LONG)}),
    "a long description": (
        "human",
        {"rename": pb.RenameEdit(new_label="person", description=LONG)},
    ),
    "patch": ("human", patch(f"@@\n line one\n+{LONG}")),
    "patch that adds": ("", patch(f"*** Add Block: notes\n+{LONG}")),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_no_edit_can_exceed_the_prompt_limit(memory: LimitedMemory, verb: str) -> None:
    label, edit = VERBS[verb]
    await memory.refuses(lambda: memory.edit(label=label, **edit))


async def test_edit_of_a_shared_block_by_another_agent_cannot_exceed_the_limit(
    memory: LimitedMemory,
) -> None:
    edit = pb.AppendEdit(content=LONG)
    await memory.refuses(lambda: memory.edit(memory.other, "shared", append=edit))
    await memory.detach(memory.shared)
    await memory.edit(memory.other, "shared", append=edit)


async def test_update_through_the_api_cannot_exceed_the_limit(memory: LimitedMemory) -> None:
    await memory.refuses(lambda: memory.update(memory.block, value=LONG))
    await memory.refuses(lambda: memory.update(memory.shared, value=LONG))
    await memory.refuses(lambda: memory.update(memory.shared, description=LONG))
    await memory.refuses(lambda: memory.create(LONG, attached=True))
    large = await memory.create(LONG, attached=False)
    await memory.refuses(lambda: memory.attach(large))
    await memory.attach(large, memory.other)


async def test_merge_cannot_exceed_the_limit(memory: LimitedMemory) -> None:
    """Two changes that fit separately are merged into one that does not."""
    await memory.update(memory.block, value="line one\nline two" + "y" * 150)
    first = await memory.edit(append=pb.AppendEdit(content="tail"))
    both = "z" * 500 + "line one\nline two"
    await memory.refuses(lambda: memory.update(memory.block, value=both, base_revision=1))
    await memory.edit(
        string_replace=pb.StringReplaceEdit(old_string="y" * 150, new_string=""),
        expected_revision=first.revision,
    )
    await memory.update(memory.block, value=both, base_revision=1)


async def test_revert_cannot_exceed_the_limit(memory: LimitedMemory) -> None:
    await memory.detach(memory.shared)
    await memory.edit(rethink=pb.RethinkEdit(new_memory="x" * 600))
    await memory.edit(rethink=pb.RethinkEdit(new_memory="short"))
    await memory.attach(memory.shared)
    await memory.edit(label="shared", append=pb.AppendEdit(content="y" * 200))

    async def revert(**target: Any) -> None:
        await memory.client.blocks.RevertBlock(
            pb.RevertBlockRequest(block_id=memory.block.id, **target)
        )

    await memory.refuses(lambda: revert(revision=3))
    await memory.refuses(lambda: revert(to_revision=2))
    await memory.refuses(lambda: revert(to_revision=2, validate_only=True))
    await memory.detach(memory.shared)
    await revert(to_revision=2)


async def test_changes_that_shrink_memory_succeed_above_the_limit(memory: LimitedMemory) -> None:
    await memory.limit(None)
    await memory.edit(append=pb.AppendEdit(content=LONG))
    await memory.edit(append=pb.AppendEdit(content="y" * 700))
    assert await memory.limit(LIMIT) is None
    await memory.refuses(lambda: memory.edit(append=pb.AppendEdit(content="x")))
    await memory.edit(string_replace=pb.StringReplaceEdit(old_string="line one", new_string=""))
    await memory.edit(string_replace=pb.StringReplaceEdit(old_string="two", new_string="six"))
    await memory.update(memory.block, metadata={"seen": "yes"}, limit=5_000)
    # A part of a block is moved into a new one, which is shorter than the removed text.
    cut = patch(f"*** Update Block: human\n@@\n-{LONG}\n*** Add Block: notes\n+few words")
    await memory.edit(label="", **cut)
    # A block is detached and its memory is used.
    swap = patch(f"*** Delete Block: notes\n*** Update Block: shared\n@@\n line one\n+{'z' * 90}")
    await memory.edit(label="", **swap)
    await memory.detach(memory.block)
    await memory.edit(label="shared", append=pb.AppendEdit(content="y"))


async def test_the_limit_applies_to_a_patch_as_a_whole(memory: LimitedMemory) -> None:
    await memory.limit(None)
    await memory.edit(append=pb.AppendEdit(content=LONG))
    await memory.limit(LIMIT)
    more = patch(f"*** Update Block: human\n@@\n-{LONG}\n*** Add Block: notes\n+{LONG}\n+and more")
    await memory.refuses(lambda: memory.edit(label="", **more))


async def test_a_refused_edit_may_be_tried_again_under_its_id(memory: LimitedMemory) -> None:
    edit: dict[str, Any] = {
        "append": pb.AppendEdit(content=LONG),
        "request_id": "run/step/call",
    }
    await memory.refuses(lambda: memory.edit(**edit))
    await memory.limit(2 * LIMIT)
    assert LONG in (await memory.edit(**edit)).value


async def test_an_agent_whose_first_blocks_exceed_the_limit_is_not_prepared(
    client: Any, memory: LimitedMemory
) -> None:
    agent = new_id("agent")
    limit = context_pb.PromptLimit(bytes=LIMIT)
    with pytest.raises(FailedPreconditionError) as caught:
        await prepare_blocks(
            client,
            agent,
            blocks=[new("human", LONG), new("persona")],
            block_ids=[memory.shared.id],
            prompt_limit=limit,
        )
    assert caught.value.reason is Reason.CONTEXT_WINDOW_EXCEEDED
    with pytest.raises(NotFoundError):
        await memory.attach(memory.shared, agent)
    listed = await client.blocks.ListBlocks(pb.ListBlocksRequest(label="persona"))
    assert not listed.blocks


async def test_limit_is_raised_at_once_and_lowered_on_request(memory: LimitedMemory) -> None:
    assert await memory.limit(2_000, only_raise=True) == LIMIT
    assert await memory.limit(1_500, only_raise=True) == 2_000
    await memory.edit(append=pb.AppendEdit(content="x" * 1_200))
    with pytest.raises(FailedPreconditionError) as caught:
        await memory.limit(1_500, only_raise=True)
    assert caught.value.reason is Reason.CONTEXT_WINDOW_EXCEEDED
    assert caught.value.metadata["limit"] == "1500"
    assert caught.value.metadata["agent_id"] == memory.agent
    assert await memory.limit(1_500, agent_revision=3) == 2_000, "the new limit is applied"
    assert await memory.limit(1_600, only_raise=True) == 1_500, "too large, but smaller than before"
    assert await memory.limit(9_000, agent_revision=2) == 1_600, (
        "the limit is of an older revision of the agent"
    )
    assert await memory.limit(None, only_raise=True) == 1_600
    assert await memory.limit(5_000, agent_revision=3) is None


async def test_line_numbers_count_towards_the_limit(memory: LimitedMemory) -> None:
    await memory.edit(rethink=pb.RethinkEdit(new_memory="a\n" * 150))
    limit = context_pb.PromptLimit(bytes=LIMIT, line_numbers=True)
    request = context_pb.LimitPromptRequest(
        agent_id=memory.agent, prompt_limit=limit, only_raise=True
    )
    with pytest.raises(FailedPreconditionError) as caught:
        await memory.client.context.LimitPrompt(request)
    assert int(caught.value.metadata["size"]) > LIMIT


async def test_limits_are_checked(memory: LimitedMemory) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        await memory.limit(-1, agent_revision=-1)
    fields = [violation.field for violation in caught.value.violations]
    assert fields == ["prompt_limit.bytes", "agent_revision"]
    memory.agent = new_id("agent")
    with pytest.raises(NotFoundError) as missing:
        await memory.limit(1)
    assert missing.value.reason is Reason.AGENT_NOT_FOUND


async def test_one_of_two_concurrent_edits_that_together_exceed_the_limit_is_refused(
    memory: LimitedMemory,
) -> None:
    content = "x" * 300
    for _ in range(4):
        results = await asyncio.gather(
            memory.edit(append=pb.AppendEdit(content=content)),
            memory.edit(memory.other, "shared", append=pb.AppendEdit(content=content)),
            return_exceptions=True,
        )
        (error,) = [result for result in results if isinstance(result, BaseException)]
        assert isinstance(error, FailedPreconditionError)
        for block in (memory.block, memory.shared):
            await memory.update(block, value="line one\nline two")
