"""`BlockService` as its callers see it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from google.protobuf.timestamp_pb2 import Timestamp

from integration.core_memory.block_calls import AGENT, create, edit, prepare
from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.api.core_memory.v1 import context_service_pb2 as context_pb
from strata.protocol.errors import (
    AbortedError,
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    Reason,
    UnauthenticatedError,
)
from strata.shared.context import RequestContext, use
from strata.shared.db import encode_page_token
from strata.shared.ids import new_id

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session", autouse=True)
async def agent(client: Any, project: str) -> None:
    """The agent of the tests, in the project of each."""
    await prepare(client)


async def read(client: Any, label: str = "human") -> pb.Block:
    request = pb.GetBlockRequest(agent_id=AGENT, label=label)
    response: pb.GetBlockResponse = await client.blocks.GetBlock(request)
    return response.block


async def test_a_created_block_has_the_defaults(client: Any) -> None:
    block = await create(client)
    assert (block.limit, block.revision, list(block.agent_ids)) == (20000, 1, [AGENT])
    assert "person you are talking with" in block.description
    assert block.create_time == block.update_time
    assert await read(client) == block
    assert (await create(client, "own", description="")).description == ""


async def test_a_repeated_request_gets_the_same_answer(client: Any) -> None:
    first = await create(client, request_id="r1")
    assert await create(client, request_id="r1") == first
    with pytest.raises(AlreadyExistsError) as caught:
        await create(client, "other", request_id="r1")
    assert caught.value.reason is Reason.REQUEST_ID_REUSED
    with pytest.raises(AlreadyExistsError) as caught:
        await edit(client, request_id="r1", append=pb.AppendEdit(content="x"))
    assert caught.value.reason is Reason.REQUEST_ID_REUSED


async def test_a_repeated_edit_takes_effect_once(client: Any) -> None:
    await create(client, value="a")
    responses = [
        await edit(client, request_id="run-1/1/call-1", append=pb.AppendEdit(content="b"))
        for _ in range(3)
    ]
    assert responses[0] == responses[1] == responses[2]
    assert (await read(client)).value == "a\nb"


async def test_verbs_change_the_block_and_show_the_change(client: Any) -> None:
    await create(client, value="one\n\ttwo")
    response = await edit(
        client, string_replace=pb.StringReplaceEdit(old_string="two", new_string="2")
    )
    assert response.block.value == "one\n\t2"
    assert response.block.revision == 2
    assert response.diff == "@@ -1,2 +1,2 @@\n one\n-\ttwo\n+\t2"
    assert response.message.startswith("The core memory block with label `human` has been edited.")
    assert (await edit(client, insert=pb.InsertEdit(new_string="end"))).block.value == (
        "one\n\t2\nend"
    )
    top = pb.InsertEdit(new_string="top", insert_line=0)
    assert (await edit(client, insert=top)).block.value == "top\none\n\t2\nend"
    replace = pb.ReplaceEdit(old_content="e", new_content="E")
    assert (await edit(client, replace=replace)).message == "None"
    rethought = await edit(client, rethink=pb.RethinkEdit(new_memory="new"))
    assert (rethought.block.value, rethought.block.revision) == ("new", 6)
    assert (await edit(client, append=pb.AppendEdit(content="line"))).block.value == "new\nline"


async def test_an_edit_without_effect_creates_no_version(client: Any) -> None:
    await create(client, value="same")
    response = await edit(client, rethink=pb.RethinkEdit(new_memory="same"))
    assert (response.block.revision, response.diff) == (1, "")


async def test_an_unknown_label_names_the_known_ones(client: Any) -> None:
    await create(client, "persona")
    await create(client, "human")
    with pytest.raises(NotFoundError) as caught:
        await edit(client, "notes", append=pb.AppendEdit(content="x"))
    assert caught.value.reason is Reason.BLOCK_NOT_FOUND
    assert caught.value.message == (
        "Block field notes does not exist (available sections = persona, human)"
    )


async def test_rethink_of_an_unknown_label_makes_the_block(client: Any) -> None:
    response = await edit(client, "notes", rethink=pb.RethinkEdit(new_memory="text"))
    assert (response.block.value, list(response.block.agent_ids)) == ("text", [AGENT])
    assert (await read(client, "notes")).value == "text"


async def test_create_accepts_paths_and_refuses_a_used_label(client: Any) -> None:
    create_edit = pb.CreateEdit(description="About.", file_text="text")
    response = await edit(client, "/memories/a/b", create=create_edit)
    assert response.message == "Successfully created memory block 'a_b'"
    assert (response.block.label, response.block.description) == ("a_b", "About.")
    with pytest.raises(AlreadyExistsError) as caught:
        await edit(client, "a_b", create=create_edit)
    assert caught.value.reason is Reason.NAME_TAKEN
    assert "SQL" not in caught.value.message
    listed = await client.blocks.ListBlocks(pb.ListBlocksRequest(label="a_b"))
    assert len(listed.blocks) == 1


async def test_rename_and_delete_work_and_are_confirmed(client: Any) -> None:
    block = await create(client, "a", "text")
    renamed = await edit(client, "a", rename=pb.RenameEdit(new_label="/memories/b"))
    assert renamed.message == "Successfully renamed memory block 'a' to 'b'"
    described = await edit(client, "b", rename=pb.RenameEdit(description="New."))
    assert described.message == "Successfully updated description of memory block 'b'"
    assert described.block.description == "New."
    deleted = await edit(client, "b", delete=pb.DeleteEdit())
    assert deleted.message == "Successfully deleted memory block 'b'"
    with pytest.raises(NotFoundError):
        await edit(client, "b", delete=pb.DeleteEdit())
    kept = await client.blocks.GetBlock(pb.GetBlockRequest(block_id=block.id))
    assert (kept.block.value, list(kept.block.agent_ids)) == ("text", [])


async def test_renaming_to_a_used_or_invalid_label_is_refused(client: Any) -> None:
    await create(client, "a")
    await create(client, "b")
    with pytest.raises(AlreadyExistsError) as taken:
        await edit(client, "a", rename=pb.RenameEdit(new_label="b"))
    assert taken.value.reason is Reason.NAME_TAKEN
    with pytest.raises(FailedPreconditionError) as impossible:
        await edit(client, "a", rename=pb.RenameEdit(new_label="no spaces"))
    assert impossible.value.reason is Reason.EDIT_NOT_APPLICABLE


@pytest.mark.parametrize(
    "verb",
    [
        {"append": pb.AppendEdit(content="x")},
        {"replace": pb.ReplaceEdit(old_content="text", new_content="x")},
        {"string_replace": pb.StringReplaceEdit(old_string="text", new_string="x")},
        {"insert": pb.InsertEdit(new_string="x")},
        {"rethink": pb.RethinkEdit(new_memory="x")},
        {"delete": pb.DeleteEdit()},
        {"rename": pb.RenameEdit(new_label="other")},
    ],
)
async def test_agents_cannot_change_a_read_only_block(client: Any, verb: Any) -> None:
    block = await create(client, value="text", read_only=True)
    with pytest.raises(FailedPreconditionError) as caught:
        await edit(client, **verb)
    assert caught.value.reason is Reason.BLOCK_READ_ONLY
    assert await read(client) == block


async def test_a_read_only_block_can_be_changed_through_the_api(client: Any) -> None:
    block = await create(client, value="text", read_only=True, metadata={"a": "1", "b": "2"})
    request = pb.UpdateBlockRequest(
        block_id=block.id, value="new", metadata={"a": "", "c": "3"}, reason="why"
    )
    updated = (await client.blocks.UpdateBlock(request)).block
    assert (updated.value, updated.revision, updated.read_only) == ("new", 2, True)
    assert dict(updated.metadata) == {"b": "2", "c": "3"}
    again = (await client.blocks.UpdateBlock(pb.UpdateBlockRequest(block_id=block.id))).block
    assert again == updated


async def test_the_limit_applies_to_every_kind_of_write(client: Any) -> None:
    block = await create(client, value="1234567890", limit=10)
    with pytest.raises(FailedPreconditionError) as caught:
        await edit(client, append=pb.AppendEdit(content=""))
    assert caught.value.reason is Reason.BLOCK_LIMIT_EXCEEDED
    for change in ({"value": "12345678901"}, {"limit": 9}):
        with pytest.raises(FailedPreconditionError) as caught:
            await client.blocks.UpdateBlock(pb.UpdateBlockRequest(block_id=block.id, **change))
        assert caught.value.reason is Reason.BLOCK_LIMIT_EXCEEDED
    with pytest.raises(FailedPreconditionError):
        await create(client, "other", "12", limit=1)
    assert await read(client) == block


async def test_an_outdated_expected_revision_is_refused(client: Any) -> None:
    block = await create(client, value="a")
    await edit(client, append=pb.AppendEdit(content="b"), expected_revision=1)
    for attempt in (
        edit(client, append=pb.AppendEdit(content="c"), expected_revision=1),
        client.blocks.UpdateBlock(
            pb.UpdateBlockRequest(block_id=block.id, value="c", expected_revision=1)
        ),
    ):
        with pytest.raises(AbortedError) as caught:
            await attempt
        assert caught.value.reason is Reason.REVISION_MISMATCH
        assert caught.value.metadata == {"expected": "1", "current": "2"}


async def test_concurrent_edits_are_all_kept(client: Any) -> None:
    await create(client, value="start")
    await asyncio.gather(
        *(edit(client, append=pb.AppendEdit(content=f"line {n}")) for n in range(16))
    )
    block = await read(client)
    assert sorted(block.value.split("\n")[1:]) == sorted(f"line {n}" for n in range(16))
    assert block.revision == 17


async def test_attach_and_detach_share_a_block(client: Any) -> None:
    block = await create(client)
    other = new_id("agent")
    await client.context.PrepareAgent(context_pb.PrepareAgentRequest(agent_id=other))
    for _ in range(2):
        attached = await client.blocks.AttachBlock(
            pb.AttachBlockRequest(agent_id=other, block_id=block.id)
        )
        assert list(attached.block.agent_ids) == [AGENT, other]
    second = await create(client, agent_id="")
    with pytest.raises(AlreadyExistsError) as caught:
        await client.blocks.AttachBlock(pb.AttachBlockRequest(agent_id=other, block_id=second.id))
    assert caught.value.reason is Reason.NAME_TAKEN
    for _ in range(2):
        await client.blocks.DetachBlock(pb.DetachBlockRequest(agent_id=AGENT, block_id=block.id))
    assert list(
        (await client.blocks.GetBlock(pb.GetBlockRequest(block_id=block.id))).block.agent_ids
    ) == [other]


async def test_deleting_a_block_removes_it_from_every_agent(client: Any) -> None:
    block = await create(client)
    request = pb.DeleteBlockRequest(block_id=block.id, request_id="gone")
    for _ in range(2):
        await client.blocks.DeleteBlock(request)
    with pytest.raises(NotFoundError):
        await client.blocks.DeleteBlock(pb.DeleteBlockRequest(block_id=block.id))
    assert not (await client.blocks.ListBlocks(pb.ListBlocksRequest(agent_id=AGENT))).blocks


async def test_lists_are_paged(client: Any) -> None:
    created = [await create(client, f"label{n}") for n in range(5)]
    scopes: tuple[dict[str, Any], ...] = ({"agent_id": AGENT}, {})
    for filters in scopes:
        seen, token = [], ""
        while True:
            page = await client.blocks.ListBlocks(
                pb.ListBlocksRequest(page_size=2, page_token=token, **filters)
            )
            seen += list(page.blocks)
            token = page.next_page_token
            if not token:
                break
        assert seen == created
    first = await client.blocks.ListBlocks(pb.ListBlocksRequest(agent_id=AGENT, page_size=1))
    for wrong in (
        pb.ListBlocksRequest(page_token=first.next_page_token),
        pb.ListBlocksRequest(agent_id=AGENT, page_token="nonsense"),
    ):
        with pytest.raises(InvalidArgumentError) as caught:
            await client.blocks.ListBlocks(wrong)
        assert caught.value.reason is Reason.INVALID_PAGE_TOKEN
    with pytest.raises(InvalidArgumentError):
        await client.blocks.ListBlocks(pb.ListBlocksRequest(page_size=-1))


async def test_a_forged_page_token_returns_only_rows_of_the_list(client: Any) -> None:
    block = await create(client)
    for scope, key in ((f"ListBlocks {AGENT} ", 2**62), ("ListBlocks  ", "é" * 30)):
        agent_id = AGENT if isinstance(key, int) else ""
        token = encode_page_token(scope, [key])
        listed = await client.blocks.ListBlocks(
            pb.ListBlocksRequest(agent_id=agent_id, page_token=token)
        )
        assert not listed.blocks
    token = encode_page_token(f"ListBlockVersions {block.id}", [2**62])
    versions = await client.blocks.ListBlockVersions(
        pb.ListBlockVersionsRequest(block_id=block.id, page_token=token)
    )
    assert len(versions.versions) == 1


async def test_versions_record_the_author_and_the_operation(client: Any, project: str) -> None:
    block = await create(client, value="a")
    run = new_id("run")
    with use(client.keys.context(project, run)):
        await edit(
            client,
            append=pb.AppendEdit(content="b"),
            origin=pb.EditOrigin(
                run_id="run-forged", step_id="step-1", tool_call_id="call-1", model="m"
            ),
        )
    await client.blocks.UpdateBlock(
        pb.UpdateBlockRequest(block_id=block.id, value="c", reason="tidy")
    )
    listed = await client.blocks.ListBlockVersions(pb.ListBlockVersionsRequest(block_id=block.id))
    update, append, first = listed.versions
    assert [v.operation for v in listed.versions] == ["update", "append", "create"]
    assert [v.value for v in listed.versions] == ["c", "a\nb", "a"]
    assert append.origin == pb.EditOrigin(
        agent_id=AGENT, run_id=run, step_id="step-1", tool_call_id="call-1", model="m"
    )
    assert (update.origin.reason, update.principal, first.principal) == ("tidy", "key-1", "key-1")
    page = await client.blocks.ListBlockVersions(
        pb.ListBlockVersionsRequest(block_id=block.id, page_size=2)
    )
    rest = await client.blocks.ListBlockVersions(
        pb.ListBlockVersionsRequest(block_id=block.id, page_token=page.next_page_token)
    )
    assert [v.revision for v in rest.versions] == [1]


async def test_diffs_compare_any_two_versions(client: Any) -> None:
    block = await create(client, value="a")
    for text in ("b", "c"):
        await edit(client, append=pb.AppendEdit(content=text))

    async def diff(**revisions: int) -> str:
        request = pb.DiffBlockRequest(block_id=block.id, **revisions)
        response: pb.DiffBlockResponse = await client.blocks.DiffBlock(request)
        return response.diff

    assert await diff() == "@@ -1,2 +1,3 @@\n a\n b\n+c"
    assert await diff(from_revision=1) == "@@ -1 +1,3 @@\n a\n+b\n+c"
    assert await diff(to_revision=1) == "@@ -0,0 +1 @@\n+a"
    assert await diff(from_revision=3, to_revision=3) == ""
    for wrong in ({"to_revision": 4}, {"from_revision": 9}, {"to_revision": 2**62}):
        with pytest.raises(NotFoundError) as caught:
            await diff(**wrong)
        assert caught.value.reason is Reason.VERSION_NOT_FOUND


async def test_a_block_can_be_read_as_of_an_earlier_time(client: Any) -> None:
    block = await create(client, value="old", limit=50)
    await client.blocks.UpdateBlock(
        pb.UpdateBlockRequest(block_id=block.id, value="new", limit=60, label="renamed")
    )
    past = await client.blocks.GetBlock(
        pb.GetBlockRequest(block_id=block.id, as_of_time=block.update_time)
    )
    assert past.block == block
    before = Timestamp()
    before.FromDatetime(block.create_time.ToDatetime() - timedelta(seconds=1))
    with pytest.raises(NotFoundError):
        await client.blocks.GetBlock(
            pb.GetBlockRequest(agent_id=AGENT, label="renamed", as_of_time=before)
        )


@pytest.mark.parametrize(
    ("request_", "fields"),
    [
        (
            pb.CreateBlockRequest(block=pb.NewBlock(label="1x", limit=-1, value="\0")),
            {"block.label", "block.limit", "block.value"},
        ),
        (pb.CreateBlockRequest(agent_id="block-1", block=pb.NewBlock(label="a")), {"agent_id"}),
        (pb.CreateBlockRequest(block=pb.NewBlock(label="value")), {"block.label"}),
        (pb.GetBlockRequest(), {"block_id"}),
        (pb.GetBlockRequest(agent_id=AGENT), {"label"}),
        (
            pb.UpdateBlockRequest(block_id="nonsense", expected_revision=-1),
            {"block_id", "expected_revision"},
        ),
        (pb.EditBlockRequest(agent_id=AGENT, label="human"), {"edit"}),
        (pb.EditBlockRequest(agent_id=AGENT, delete=pb.DeleteEdit()), {"label"}),
        (
            pb.EditBlockRequest(agent_id=AGENT, label="a", append=pb.AppendEdit(content="\0")),
            {"append.content"},
        ),
        (
            pb.EditBlockRequest(agent_id=AGENT, label="a", rename=pb.RenameEdit()),
            {"rename"},
        ),
        (
            pb.UpdateBlockRequest(block_id=new_id("block"), value="x" * 1_000_001),
            {"value"},
        ),
        (pb.DeleteBlockRequest(block_id=new_id("block"), request_id="r" * 257), {"request_id"}),
        (pb.ListBlockVersionsRequest(block_id=AGENT), {"block_id"}),
        (pb.DiffBlockRequest(block_id=new_id("block"), to_revision=-2), {"to_revision"}),
    ],
)
async def test_wrong_requests_name_every_wrong_field(
    client: Any, request_: Any, fields: set[str]
) -> None:
    method = getattr(client.blocks, type(request_).__name__.removesuffix("Request"))
    with pytest.raises(InvalidArgumentError) as caught:
        await method(request_)
    assert {violation.field for violation in caught.value.violations} == fields


@pytest.mark.parametrize(
    "request_",
    [
        pb.GetBlockRequest(block_id=new_id("block")),
        pb.UpdateBlockRequest(block_id=new_id("block"), value="x"),
        pb.DeleteBlockRequest(block_id=new_id("block")),
        pb.AttachBlockRequest(agent_id=AGENT, block_id=new_id("block")),
        pb.DetachBlockRequest(agent_id=AGENT, block_id=new_id("block")),
        pb.ListBlockVersionsRequest(block_id=new_id("block")),
        pb.DiffBlockRequest(block_id=new_id("block")),
    ],
)
async def test_unknown_blocks_are_not_found(client: Any, request_: Any) -> None:
    method = getattr(client.blocks, type(request_).__name__.removesuffix("Request"))
    with pytest.raises(NotFoundError) as caught:
        await method(request_)
    assert caught.value.reason is Reason.BLOCK_NOT_FOUND


async def test_blocks_of_another_project_are_not_found(client: Any) -> None:
    block = await create(client, value="secret")
    with use(client.keys.context(new_id("project"))):
        for request in (
            pb.GetBlockRequest(block_id=block.id),
            pb.GetBlockRequest(agent_id=AGENT, label="human"),
            pb.UpdateBlockRequest(block_id=block.id, value="x"),
            pb.DeleteBlockRequest(block_id=block.id),
            pb.AttachBlockRequest(agent_id=AGENT, block_id=block.id),
            pb.DetachBlockRequest(agent_id=AGENT, block_id=block.id),
            pb.EditBlockRequest(agent_id=AGENT, label="human", append=pb.AppendEdit(content="x")),
            pb.ListBlockVersionsRequest(block_id=block.id),
            pb.DiffBlockRequest(block_id=block.id),
        ):
            method = getattr(client.blocks, type(request).__name__.removesuffix("Request"))
            with pytest.raises(NotFoundError) as caught:
                await method(request)
            assert caught.value.reason is Reason.BLOCK_NOT_FOUND
            assert "secret" not in caught.value.message
        assert not (await client.blocks.ListBlocks(pb.ListBlocksRequest())).blocks
    assert await read(client) == block


async def test_calls_without_credentials_are_refused(client: Any) -> None:
    with use(RequestContext()), pytest.raises(UnauthenticatedError) as caught:
        await client.blocks.GetBlock(pb.GetBlockRequest(block_id=new_id("block")))
    assert caught.value.reason is Reason.CREDENTIALS_MISSING


async def test_updates_cannot_exceed_the_number_of_metadata_pairs(client: Any) -> None:
    block = await create(client, metadata={f"a{number}": "1" for number in range(64)})

    async def update(**metadata: str) -> pb.Block:
        request = pb.UpdateBlockRequest(block_id=block.id, metadata=metadata)
        response: pb.UpdateBlockResponse = await client.blocks.UpdateBlock(request)
        return response.block

    with pytest.raises(InvalidArgumentError) as caught:
        await update(b="2")
    assert [violation.field for violation in caught.value.violations] == ["metadata"]
    assert (await read(client)).metadata == block.metadata
    assert len((await update(a0="2")).metadata) == 64
    replaced = await update(a0="", b="2")
    assert len(replaced.metadata) == 64
    assert replaced.metadata["b"] == "2"
