"""Deletion, history, blame and reverts through `BlockService`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import pytest_asyncio
from google.protobuf.timestamp_pb2 import Timestamp

from integration.core_memory.block_calls import AGENT, create, patch, prepare
from stored_words import tables_with
from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.api.core_memory.v1 import context_service_pb2 as context_pb
from strata.core_memory.convert.history import blame_to_proto
from strata.protocol.errors import (
    AbortedError,
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    Reason,
)
from strata.shared.context import use
from strata.shared.db.paging import PAGE_BYTES
from strata.shared.ids import new_id
from thread_records import record_threads

pytestmark = pytest.mark.asyncio(loop_scope="session")

OTHER = new_id("agent")


@pytest_asyncio.fixture(loop_scope="session", autouse=True)
async def agents(client: Any, project: str) -> None:
    """The agents of the tests, in the project of each."""
    for agent in (AGENT, OTHER):
        await prepare(client, agent)


async def append(
    client: Any, text: str, *, run: str = "", label: str = "human", agent: str = AGENT
) -> pb.Block:
    request = pb.EditBlockRequest(
        agent_id=agent,
        label=label,
        append=pb.AppendEdit(content=text),
        origin=pb.EditOrigin(run_id=run, kind=pb.EDITOR_KIND_AGENT),
    )
    response: pb.EditBlockResponse = await client.blocks.EditBlock(request)
    return response.block


async def update(client: Any, block: pb.Block, **fields: Any) -> pb.Block:
    request = pb.UpdateBlockRequest(block_id=block.id, **fields)
    response: pb.UpdateBlockResponse = await client.blocks.UpdateBlock(request)
    return response.block


async def delete(client: Any, block: pb.Block, **more: Any) -> None:
    await client.blocks.DeleteBlock(pb.DeleteBlockRequest(block_id=block.id, **more))


async def revert(client: Any, block: pb.Block | None = None, **more: Any) -> list[pb.BlockChange]:
    request = pb.RevertBlockRequest(block_id=block.id if block else "", **more)
    response: pb.RevertBlockResponse = await client.blocks.RevertBlock(request)
    assert list(response.blocks) == [change.block for change in response.changes]
    return list(response.changes)


async def read(client: Any, block: pb.Block, **more: Any) -> pb.Block:
    response: pb.GetBlockResponse = await client.blocks.GetBlock(
        pb.GetBlockRequest(block_id=block.id, **more)
    )
    return response.block


async def versions(client: Any, block: pb.Block) -> list[pb.BlockVersion]:
    request = pb.ListBlockVersionsRequest(block_id=block.id)
    return list((await client.blocks.ListBlockVersions(request)).versions)


async def labels(client: Any, **more: Any) -> list[str]:
    listed = await client.blocks.ListBlocks(pb.ListBlocksRequest(**more))
    return [block.label for block in listed.blocks]


async def compiled(client: Any, **more: Any) -> context_pb.CompileResponse:
    response: context_pb.CompileResponse = await client.context.Compile(
        context_pb.CompileRequest(agent_id=AGENT, **more)
    )
    return response


async def test_a_deleted_block_is_not_found_but_its_history_is_readable(client: Any) -> None:
    block = await create(client, value="text")
    shared = pb.AttachBlockRequest(agent_id=OTHER, block_id=block.id)
    await client.blocks.AttachBlock(shared)
    await delete(client, block, reason="spring cleaning")
    for call in (
        read(client, block),
        update(client, block, value="x"),
        append(client, "x"),
        delete(client, block),
        client.blocks.AttachBlock(shared),
        client.blocks.DetachBlock(pb.DetachBlockRequest(agent_id=AGENT, block_id=block.id)),
        client.context.PrepareAgent(
            context_pb.PrepareAgentRequest(agent_id=new_id("agent"), block_ids=[block.id])
        ),
    ):
        with pytest.raises(NotFoundError) as caught:
            await call
        assert caught.value.reason is Reason.BLOCK_NOT_FOUND
    for agent in (AGENT, OTHER):
        assert await labels(client, agent_id=agent) == []
    assert await labels(client) == []
    ended, made = await versions(client, block)
    assert (ended.operation, ended.value, ended.revision) == ("delete", "text", 2)
    assert ended.origin.reason == "spring cleaning"
    assert made.operation == "create"
    assert (await read(client, block, as_of_time=block.update_time)).value == "text"
    with pytest.raises(NotFoundError):
        await read(client, block, as_of_time=ended.create_time)
    diff = await client.blocks.DiffBlock(
        pb.DiffBlockRequest(block_id=block.id, from_revision=1, to_revision=2)
    )
    assert diff.diff == ""
    listed = await client.blocks.ListBlocks(pb.ListBlocksRequest(show_deleted=True))
    assert [block.id for block in listed.blocks] == [block.id]
    assert listed.blocks[0].delete_time == ended.create_time
    assert not listed.blocks[0].agent_ids


async def test_a_label_is_free_again_after_a_deletion(client: Any) -> None:
    first = await create(client, value="first")
    await delete(client, first)
    second = await create(client, value="second")
    assert await labels(client, show_deleted=True) == ["human", "human"]
    (change,) = await revert(client, first, revision=2)
    assert (change.operation, list(change.block.agent_ids)) == ("revert", [])
    with pytest.raises(AlreadyExistsError):
        await client.blocks.AttachBlock(pb.AttachBlockRequest(agent_id=AGENT, block_id=first.id))
    assert (await read(client, second)).value == "second"


@pytest.mark.parametrize("target", [{"revision": 3}, {"to_revision": 2}, {"to_revision": 1}])
async def test_a_deleted_block_can_be_restored(client: Any, target: dict[str, int]) -> None:
    block = await create(client, value="a", description="d", read_only=False, limit=50)
    changed = await update(client, block, value="b", limit=60, metadata={"k": "v"})
    await delete(client, block)
    (change,) = await revert(client, block, **target)
    back = await read(client, block)
    assert change.block == back
    expected = block if target == {"to_revision": 1} else changed
    for field in ("value", "label", "description", "limit", "read_only", "metadata"):
        assert getattr(back, field) == getattr(expected, field)
    assert (back.revision, list(back.agent_ids)) == (4, [])
    assert not back.HasField("delete_time")
    await client.blocks.AttachBlock(pb.AttachBlockRequest(agent_id=AGENT, block_id=block.id))
    assert await labels(client, agent_id=AGENT) == ["human"]


async def test_a_deleted_block_cannot_be_changed_before_it_is_restored(client: Any) -> None:
    block = await create(client, value="a")
    await update(client, block, value="b")
    await delete(client, block)
    with pytest.raises(NotFoundError):
        await revert(client, block, revision=2)
    assert await revert(client, block, to_revision=3) == []


async def test_a_purge_destroys_everything(client: Any) -> None:
    block, ended = await create(client, "one"), await create(client, "two")
    await delete(client, ended)
    for destroyed in (block, ended):
        await delete(client, destroyed, purge=True, request_id=f"purge-{destroyed.label}")
        await delete(client, destroyed, purge=True, request_id=f"purge-{destroyed.label}")
        for call in (
            delete(client, destroyed, purge=True),
            versions(client, destroyed),
            read(client, destroyed, as_of_time=destroyed.update_time),
            revert(client, destroyed, to_revision=1),
            client.blocks.BlameBlock(pb.BlameBlockRequest(block_id=destroyed.id)),
        ):
            with pytest.raises(NotFoundError):
                await call
    assert await labels(client, show_deleted=True) == []


async def test_a_purge_destroys_stored_responses(client: Any, admin: Any) -> None:
    word = f"secret-{new_id('x')}"
    block = await create(client, "plans", word, request_id="create")
    kept = await create(client, "kept", "a", request_id="create-kept")
    attach = pb.AttachBlockRequest(agent_id=OTHER, block_id=block.id, request_id="attach")
    await client.blocks.AttachBlock(attach)
    await update(client, block, value=f"{word} 2", request_id="update")
    await revert(client, block, to_revision=1, request_id="revert")
    steps = f"*** Update Block: plans\n-{word}\n+{word} 3\n*** Update Block: kept\n-a\n+b"
    changed = f"*** Begin Patch\n{steps}\n*** End Patch"
    await patch(client, changed, "", request_id="patch")
    await update(client, kept, value="c", request_id="update-kept")
    assert await tables_with(admin, "core_memory", word) >= {"blocks", "block_versions", "requests"}

    await delete(client, block, purge=True, request_id="purge")

    assert await tables_with(admin, "core_memory", word) == set()
    await delete(client, block, purge=True, request_id="purge")
    for repeated in (
        create(client, "plans", word, request_id="create"),
        client.blocks.AttachBlock(attach),
        update(client, block, value=f"{word} 2", request_id="update"),
        revert(client, block, to_revision=1, request_id="revert"),
        patch(client, changed, "", request_id="patch"),
    ):
        with pytest.raises(NotFoundError) as raised:
            await repeated
        assert raised.value.reason is Reason.BLOCK_NOT_FOUND
        assert raised.value.metadata["id"] == block.id
    assert await labels(client) == ["kept"]
    assert (await create(client, "kept", "a", request_id="create-kept")).value == "a"
    assert (await update(client, kept, value="c", request_id="update-kept")).value == "c"


async def test_memory_can_be_compiled_as_of_an_earlier_time(client: Any) -> None:
    human = await create(client, value="h1")
    first = await compiled(client)
    notes = await create(client, "notes", "n1")
    between = notes.create_time
    await append(client, "h2")
    second = await compiled(client)
    changed = (await read(client, human)).update_time
    await client.blocks.DetachBlock(pb.DetachBlockRequest(agent_id=AGENT, block_id=human.id))
    await delete(client, notes)
    assert (await compiled(client)).memory_section == ""

    for time, then in ((human.create_time, first), (changed, second)):
        past = await compiled(client, as_of_time=time)
        assert past == then
        again = await compiled(client, as_of_time=time, if_revision=past.revision)
        assert (again.not_changed, again.memory_section) == (True, "")
    listed = await client.blocks.ListBlocks(
        pb.ListBlocksRequest(agent_id=AGENT, as_of_time=between)
    )
    assert [(block.label, block.value) for block in listed.blocks] == [
        ("human", "h1"),
        ("notes", "n1"),
    ]
    assert list(listed.blocks[0].agent_ids) == [AGENT]
    response = await client.blocks.GetBlock(
        pb.GetBlockRequest(agent_id=AGENT, label="notes", as_of_time=between)
    )
    assert response.block.value == "n1"
    with pytest.raises(NotFoundError) as caught:
        await client.blocks.GetBlock(
            pb.GetBlockRequest(agent_id=AGENT, label="notes", as_of_time=human.create_time)
        )
    assert "human" in str(caught.value)
    rendered = await client.blocks.RenderMemory(
        pb.RenderMemoryRequest(agent_id=AGENT, as_of_time=changed)
    )
    assert rendered.text == second.memory_section
    assert [block.value for block in rendered.blocks] == ["h1\nh2", "n1"]
    assert rendered.last_modified_time == changed


async def test_versions_have_all_fields_of_the_block(client: Any) -> None:
    block = await create(client, value="a", description="d", limit=50, metadata={"k": "v"})
    await append(client, "b", run="run-1")
    newest, first = await versions(client, block)
    assert (first.description, first.limit, first.read_only) == ("d", 50, False)
    assert dict(first.metadata) == {"k": "v"}
    assert (first.origin.kind, newest.origin.kind) == (
        pb.EDITOR_KIND_USER,
        pb.EDITOR_KIND_AGENT,
    )


async def blame(client: Any, block: pb.Block, revision: int = 0) -> list[tuple[int, str, int]]:
    request = pb.BlameBlockRequest(block_id=block.id, revision=revision)
    response = await client.blocks.BlameBlock(request)
    return [(line.line, line.text, line.revision) for line in response.lines]


async def test_the_lines_of_a_large_block_are_paged_at_one_revision(client: Any) -> None:
    value = "\n".join(str(number) for number in range(60_000))
    block = await create(client, value=value, limit=400_000)
    request = pb.BlameBlockRequest(block_id=block.id)
    lines: list[pb.BlameLine] = []
    while True:
        response = await client.blocks.BlameBlock(request)
        assert response.ByteSize() < PAGE_BYTES
        lines += response.lines
        request.page_token = response.next_page_token
        if not request.page_token:
            break
        if len(lines) < 20_000:
            # The following pages are of the same text.
            await update(client, block, value=f"before\n{value}")
    assert [line.text for line in lines] == value.split("\n")
    assert [line.line for line in lines] == list(range(1, 60_001))
    assert {line.revision for line in lines} == {1}


async def test_a_page_of_lines_has_the_requested_size(client: Any) -> None:
    block = await create(client, value="one\ntwo\nthree")
    request = pb.BlameBlockRequest(block_id=block.id, page_size=2)
    response = await client.blocks.BlameBlock(request)
    assert [line.line for line in response.lines] == [1, 2]
    request.page_token = response.next_page_token
    response = await client.blocks.BlameBlock(request)
    assert [(line.line, line.text) for line in response.lines] == [(3, "three")]
    assert not response.next_page_token
    request.revision = 1
    with pytest.raises(InvalidArgumentError) as caught:
        await client.blocks.BlameBlock(request)
    assert caught.value.reason is Reason.INVALID_PAGE_TOKEN


async def test_each_line_has_its_author(client: Any) -> None:
    block = await create(client, value="one\ntwo")
    await append(client, "three", run="run-1")
    await update(client, block, value="one\nTWO\nthree", reason="louder")
    assert await blame(client, block) == [(1, "one", 1), (2, "TWO", 3), (3, "three", 2)]
    assert await blame(client, block, 2) == [(1, "one", 1), (2, "two", 1), (3, "three", 2)]
    response = await client.blocks.BlameBlock(pb.BlameBlockRequest(block_id=block.id))
    _, changed, appended = response.lines
    assert (changed.operation, changed.origin.reason, changed.principal) == (
        "update",
        "louder",
        "key-1",
    )
    assert (appended.operation, appended.origin.run_id) == ("append", "run-1")
    assert appended.create_time.ToDatetime() <= changed.create_time.ToDatetime()
    await delete(client, block)
    assert len(await blame(client, block)) == 3


async def test_blame_reads_long_histories_to_the_end(client: Any) -> None:
    block = await create(client, value="first")
    for number in range(50):
        await append(client, str(number))
    lines = await blame(client, block)
    assert [revision for _, _, revision in lines] == list(range(1, 52))


async def test_lines_of_a_blame_are_converted_on_a_thread(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_loop = record_threads(
        monkeypatch, "strata.core_memory.convert.history.blame_to_proto", blame_to_proto
    )
    block = await create(client, value="one\ntwo")
    assert await blame(client, block) == [(1, "one", 1), (2, "two", 1)]
    assert on_loop == [False]


async def test_missing_blocks_cannot_be_blamed_or_reverted(client: Any) -> None:
    block = await create(client)
    for call, reason in (
        (blame(client, block, 2), Reason.VERSION_NOT_FOUND),
        (revert(client, block, revision=2), Reason.VERSION_NOT_FOUND),
        (revert(client, block, to_revision=2), Reason.VERSION_NOT_FOUND),
        (blame(client, pb.Block(id=new_id("block"))), Reason.BLOCK_NOT_FOUND),
        (revert(client, pb.Block(id=new_id("block")), revision=1), Reason.BLOCK_NOT_FOUND),
        (revert(client, pb.Block(id=new_id("block")), run_id="run-1"), Reason.BLOCK_NOT_FOUND),
    ):
        with pytest.raises(NotFoundError) as caught:
            await call
        assert caught.value.reason is reason
    assert await revert(client, run_id="run-unheard-of") == []


async def test_one_edit_is_undone_and_later_ones_stay(client: Any) -> None:
    block = await create(client, value="one", read_only=False)
    await append(client, "two")
    await append(client, "three")
    await update(client, block, read_only=True)
    (change,) = await revert(client, block, revision=2, reason="it was wrong")
    assert change.block.value == "one\nthree"
    assert change.diff == "@@ -1,3 +1,2 @@\n one\n-two\n three"
    assert (change.block.revision, change.block.read_only) == (5, True)
    newest = (await versions(client, block))[0]
    assert (newest.operation, newest.value, newest.origin.reason) == (
        "revert",
        "one\nthree",
        "it was wrong",
    )
    assert newest.origin.kind == pb.EDITOR_KIND_USER
    (back,) = await revert(client, block, revision=5)
    assert back.block.value == "one\ntwo\nthree"
    assert (await versions(client, block))[0].origin.reason == "undoes revision 5"


async def test_an_edit_with_later_changes_of_its_text_is_not_undone(client: Any) -> None:
    block = await create(client, value="one")
    await update(client, block, value="two")
    await update(client, block, value="three")
    with pytest.raises(AbortedError) as caught:
        await revert(client, block, revision=2)
    assert caught.value.reason is Reason.EDIT_CONFLICT
    assert caught.value.metadata["labels"] == "human"
    assert (await read(client, block)).revision == 3


async def test_all_edits_of_a_run_are_undone(client: Any) -> None:
    human, notes = await create(client, value="h"), await create(client, "notes", "n")
    await append(client, "bad 1", run="run-1")
    await append(client, "bad 2", run="run-1")
    await append(client, "good", run="run-2")
    await append(client, "bad 3", run="run-1")
    await append(client, "bad", run="run-1", label="notes")
    made = await client.blocks.EditBlock(
        pb.EditBlockRequest(
            agent_id=AGENT,
            label="made",
            create=pb.CreateEdit(file_text="x"),
            origin=pb.EditOrigin(run_id="run-1"),
        )
    )
    planned = await revert(client, run_id="run-1", validate_only=True)
    assert (await read(client, human)).revision == 5
    request: dict[str, Any] = {"run_id": "run-1", "request_id": "undo"}
    changes = {change.block.label: change for change in await revert(client, **request)}
    assert {label: change.block.value for label, change in changes.items()} == {
        "human": "h\ngood",
        "notes": "n",
        "made": "x",
    }
    assert [change.diff for change in planned] == [
        changes[change.block.label].diff for change in planned
    ]
    assert changes["made"].operation == "delete"
    assert changes["made"].block.HasField("delete_time")
    assert [block.label for block in (await revert_response(client, **request)).blocks] == [
        change.block.label for change in planned
    ]
    assert await labels(client, agent_id=AGENT) == ["human", "notes"]
    assert await revert(client, run_id="run-1") == []
    assert (await read(client, notes)).value == "n"
    (back,) = await revert(client, pb.Block(id=made.block.id), revision=2)
    assert back.block.value == "x"


async def revert_response(client: Any, **more: Any) -> pb.RevertBlockResponse:
    response: pb.RevertBlockResponse = await client.blocks.RevertBlock(
        pb.RevertBlockRequest(**more)
    )
    return response


async def test_several_blocks_are_reverted_together_or_not_at_all(client: Any) -> None:
    human, notes = await create(client, value="h"), await create(client, "notes", "n")
    await append(client, "bad", run="run-1")
    await append(client, "bad", run="run-1", label="notes")
    await update(client, notes, value="n\nbad and worse")
    with pytest.raises(AbortedError) as caught:
        await revert(client, run_id="run-1")
    assert caught.value.metadata["labels"] == "notes"
    assert (await read(client, human)).value == "h\nbad"
    (change,) = await revert(client, human, run_id="run-1")
    assert change.block.value == "h"


async def test_the_edits_of_an_agent_since_a_time_are_undone(client: Any) -> None:
    block = await create(client, value="h")
    await client.blocks.AttachBlock(pb.AttachBlockRequest(agent_id=OTHER, block_id=block.id))
    await append(client, "early")
    since = Timestamp()
    since.CopyFrom((await append(client, "mine")).update_time)
    await append(client, "theirs", agent=OTHER)
    await append(client, "mine too")
    assert [
        change.block.value
        for change in await revert(client, since_time=since, agent_id=AGENT, validate_only=True)
    ] == ["h\nearly\ntheirs"]
    (change,) = await revert(client, block, since_time=since)
    assert change.block.value == "h\nearly"


async def test_undoing_keeps_to_the_limit_and_to_labels(client: Any) -> None:
    block = await create(client, value="long text", limit=20)
    await update(client, block, value="short")
    await update(client, block, limit=6)
    with pytest.raises(FailedPreconditionError) as caught:
        await revert(client, block, revision=2)
    assert caught.value.reason is Reason.BLOCK_LIMIT_EXCEEDED
    await update(client, block, label="renamed")
    await create(client, "human")
    for validate_only in (True, False):
        with pytest.raises(AlreadyExistsError) as taken:
            await revert(client, block, revision=4, validate_only=validate_only)
        assert taken.value.reason is Reason.NAME_TAKEN
    assert (await read(client, block)).label == "renamed"


async def test_reverts_without_a_selection_of_edits_are_refused(client: Any) -> None:
    block, time = await create(client), Timestamp(seconds=1)
    for request, field in (
        (pb.RevertBlockRequest(block_id=block.id), "target"),
        (pb.RevertBlockRequest(revision=1), "block_id"),
        (pb.RevertBlockRequest(to_revision=1), "block_id"),
        (pb.RevertBlockRequest(block_id=block.id, revision=-1), "revision"),
        (pb.RevertBlockRequest(block_id=block.id, to_revision=0), "to_revision"),
        (pb.RevertBlockRequest(block_id=block.id, run_id=""), "run_id"),
        (pb.RevertBlockRequest(since_time=time), "since_time"),
        (pb.RevertBlockRequest(block_id=block.id, revision=1, agent_id=AGENT), "agent_id"),
        (pb.ListBlocksRequest(as_of_time=time), "as_of_time"),
        (pb.ListBlocksRequest(agent_id=AGENT, show_deleted=True), "show_deleted"),
        (pb.BlameBlockRequest(block_id=block.id, revision=-1), "revision"),
    ):
        method = type(request).__name__.removesuffix("Request")
        with pytest.raises(InvalidArgumentError) as caught:
            await getattr(client.blocks, method)(request)
        assert [violation.field for violation in caught.value.violations] == [field]


async def test_concurrent_reverts_and_edits_lose_no_line(client: Any) -> None:
    block = await create(client, value="top")
    for number in range(6):
        await append(client, f"bad {number}", run=f"run-{number}")
    await asyncio.gather(
        *(revert(client, run_id=f"run-{number}") for number in range(6)),
        *(append(client, f"good {number}") for number in range(6)),
    )
    lines = (await read(client, block)).value.split("\n")
    assert lines[0] == "top"
    assert sorted(lines[1:]) == [f"good {number}" for number in range(6)]
    assert [version.revision for version in await versions(client, block)] == list(range(19, 0, -1))


async def test_other_projects_can_neither_revert_nor_read_edits(client: Any) -> None:
    block = await create(client, value="h")
    await append(client, "x", run="run-1")
    with use(client.keys.context(new_id("project"))):
        assert await revert(client, run_id="run-1") == []
        for call in (
            revert(client, block, run_id="run-1"),
            blame(client, block),
            client.blocks.RenderMemory(pb.RenderMemoryRequest(agent_id=AGENT)),
            client.blocks.LintMemory(pb.LintMemoryRequest(agent_id=AGENT)),
            client.blocks.LintMemory(pb.LintMemoryRequest(block_id=block.id)),
        ):
            with pytest.raises(NotFoundError):
                await call
        assert (await compiled(client, as_of_time=block.create_time)).memory_section == ""
    assert (await read(client, block)).value == "h\nx"


async def last_named(client: Any, label: str, agent: str = AGENT) -> pb.Block:
    request = pb.GetBlockRequest(agent_id=agent, label=label, show_detached=True)
    response: pb.GetBlockResponse = await client.blocks.GetBlock(request)
    return response.block


async def test_the_last_block_of_a_label_is_returned_after_it_was_detached_or_deleted(
    client: Any,
) -> None:
    first = await create(client, value="first")
    assert (await last_named(client, "human")).id == first.id
    await client.blocks.DetachBlock(pb.DetachBlockRequest(agent_id=AGENT, block_id=first.id))
    assert (await last_named(client, "human")).id == first.id
    second = await create(client, value="second")
    await client.blocks.DeleteBlock(pb.DeleteBlockRequest(block_id=second.id))
    deleted = await last_named(client, "human")
    assert deleted.id == second.id
    assert deleted.HasField("delete_time")
    await client.blocks.AttachBlock(pb.AttachBlockRequest(agent_id=AGENT, block_id=first.id))
    assert (await last_named(client, "human")).id == first.id
    await client.blocks.DetachBlock(pb.DetachBlockRequest(agent_id=AGENT, block_id=first.id))
    assert (await last_named(client, "human")).id == first.id


async def test_the_last_block_of_a_label_is_returned_after_it_was_renamed(client: Any) -> None:
    block = await create(client)
    await update(client, block, label="person")
    assert (await last_named(client, "human")).id == block.id
    assert (await last_named(client, "person")).id == block.id


async def test_a_block_that_the_agent_never_had_or_that_was_purged_is_not_found(
    client: Any,
) -> None:
    block = await create(client)
    with pytest.raises(NotFoundError) as other:
        await last_named(client, "human", OTHER)
    assert other.value.reason is Reason.BLOCK_NOT_FOUND
    await client.blocks.DeleteBlock(pb.DeleteBlockRequest(block_id=block.id, purge=True))
    with pytest.raises(NotFoundError):
        await last_named(client, "human")


async def test_detached_blocks_are_listed_by_agent_and_label_only(client: Any) -> None:
    block = await create(client)
    with pytest.raises(InvalidArgumentError) as refused:
        await client.blocks.GetBlock(pb.GetBlockRequest(block_id=block.id, show_detached=True))
    assert [violation.field for violation in refused.value.violations] == ["show_detached"]
