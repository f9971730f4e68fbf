"""Edits as agents and the API make them: patches, merging, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import pytest_asyncio

from failures import failure
from integration.core_memory.block_calls import AGENT, create, edit, patch, prepare, versions
from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.protocol.errors import (
    AbortedError,
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    Reason,
    StrataError,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

EDITED = "The core memory block with label `human` has been edited. "


@pytest_asyncio.fixture(loop_scope="session", autouse=True)
async def agent(client: Any, project: str) -> None:
    """The agent of the tests, in the project of each."""
    await prepare(client)


async def append(client: Any, text: str, label: str = "human") -> pb.Block:
    return (await edit(client, label, append=pb.AppendEdit(content=text))).block


async def memory(client: Any) -> dict[str, str]:
    """The agent's blocks, in order."""
    listed = await client.blocks.ListBlocks(pb.ListBlocksRequest(agent_id=AGENT))
    return {block.label: block.value for block in listed.blocks}


async def test_a_patch_of_one_block_creates_one_version(client: Any) -> None:
    block = await create(client, value="one\n\ttwo\nthree")
    response = await patch(client, "@@ -1,9 +1,9 @@\n \ttwo\n-three\n+3")
    assert (response.block.value, response.block.revision) == ("one\n\ttwo\n3", 2)
    assert response.message.startswith(EDITED)
    (change,) = response.changes
    assert (change.block, change.diff, change.operation) == (
        response.block,
        response.diff,
        "patch",
    )
    newest = (await versions(client, block.id))[0]
    assert (newest.operation, newest.value) == ("patch", "one\n\ttwo\n3")


async def test_a_patch_of_several_blocks_writes_each(client: Any) -> None:
    blocks = {label: await create(client, label, f"text of {label}") for label in "abcd"}
    response = await patch(
        client,
        "*** Begin Patch\n*** Update Block: a\n@@\n-text of a\n+new a\n*** Delete Block: b\n"
        "*** Add Block: notes\n+first\n+\tsecond\n*** Update Block: c\n*** Move to: b\n"
        "*** Update Block: d\n*** Move to: e\n@@\n text of d\n+more\n*** End Patch",
        label="",
    )
    assert await memory(client) == {
        "a": "new a",
        "b": "text of c",
        "e": "text of d\nmore",
        "notes": "first\n\tsecond",
    }
    assert [(c.block.label, c.operation, bool(c.diff)) for c in response.changes] == [
        ("a", "patch", True),
        ("b", "delete", False),
        ("notes", "create", True),
        ("b", "rename", False),
        ("e", "patch", True),
    ]
    assert response.message.startswith(
        "Successfully applied the patch: edited `a`, deleted `b`, created `notes`, renamed `c` to "
        "`b`, renamed `d` to `e`. "
    )
    kept = await client.blocks.GetBlock(pb.GetBlockRequest(block_id=blocks["b"].id))
    assert (kept.block.value, list(kept.block.agent_ids)) == ("text of b", [])
    assert [v.operation for v in await versions(client, blocks["c"].id)] == ["rename", "create"]
    added = response.changes[2].block
    assert [v.operation for v in await versions(client, added.id)] == ["create"]
    assert list(added.agent_ids) == [AGENT]


@pytest.mark.parametrize(
    ("last", "kind", "reason"),
    [
        ("*** Update Block: b\n@@\n-nothing\n+x", FailedPreconditionError, "EDIT_NOT_APPLICABLE"),
        ("*** Update Block: b\n@@\n-text\n+" + "x" * 20_001, FailedPreconditionError,
         "BLOCK_LIMIT_EXCEEDED"),
        ("*** Update Block: fixed\n@@\n-text\n+x", FailedPreconditionError, "BLOCK_READ_ONLY"),
        ("*** Update Block: fixed\n*** Move to: free", FailedPreconditionError, "BLOCK_READ_ONLY"),
        ("*** Delete Block: fixed", FailedPreconditionError, "BLOCK_READ_ONLY"),
        ("*** Add Block: fixed\n+x", FailedPreconditionError, "BLOCK_READ_ONLY"),
        ("*** Add Block: b\n+x", AlreadyExistsError, "NAME_TAKEN"),
        ("*** Update Block: b\n*** Move to: fixed", AlreadyExistsError, "NAME_TAKEN"),
        ("*** Update Block: b\n*** Move to: no label", FailedPreconditionError,
         "EDIT_NOT_APPLICABLE"),
        ("*** Add Block: value\n+x", FailedPreconditionError, "EDIT_NOT_APPLICABLE"),
        ("*** Add Block: new\n+1→ x", FailedPreconditionError, "EDIT_NOT_APPLICABLE"),
        ("*** Update Block: gone\n@@\n-text\n+x", NotFoundError, "BLOCK_NOT_FOUND"),
        ("*** Delete Block: gone", NotFoundError, "BLOCK_NOT_FOUND"),
        ("*** Delete Block: a", FailedPreconditionError, "EDIT_NOT_APPLICABLE"),
    ],
)  # fmt: skip
async def test_a_patch_is_applied_completely_or_not_at_all(
    client: Any, last: str, kind: type[StrataError], reason: str
) -> None:
    for label in ("a", "b"):
        await create(client, label, "text")
    await create(client, "fixed", "text", read_only=True)
    before = await memory(client)
    text = f"*** Add Block: added\n+x\n*** Update Block: a\n@@\n-text\n+new\n{last}"
    await failure(patch(client, text), kind, Reason(reason))
    assert await memory(client) == before
    assert await client.blocks.ListBlocks(pb.ListBlocksRequest(label="added")) == (
        pb.ListBlocksResponse()
    )


async def test_a_repeated_patch_is_done_once(client: Any) -> None:
    await create(client, value="a")
    text = "*** Add Block: notes\n+x\n*** Update Block: human\n@@\n+b"
    answers = [await patch(client, text, request_id="run/1/call-1") for _ in range(2)]
    assert answers[0] == answers[1]
    assert await memory(client) == {"human": "a\nb", "notes": "x"}


async def test_meaningless_headers_of_a_patch_are_ignored(client: Any) -> None:
    await create(client, value="a")
    await create(client, "notes", "a")
    await patch(client, "--- before\n+++ after\n@@\n-a\n+b")
    assert await memory(client) == {"human": "b", "notes": "a"}
    await patch(client, "--- a/notes\n+++ b/notes\n@@\n-a\n+c")
    assert await memory(client) == {"human": "b", "notes": "c"}


async def test_a_patch_must_name_its_target(client: Any) -> None:
    attempt = patch(client, "@@\n+x", label="")
    error = await failure(attempt, FailedPreconditionError, Reason.EDIT_NOT_APPLICABLE)
    assert error.message.startswith("The patch does not say which block it is for. ")
    await create(client, "a")
    await create(client, "b")
    both = "*** Update Block: a\n@@\n+x\n*** Update Block: b\n@@\n+x"
    await failure(
        patch(client, both, expected_revision=1), InvalidArgumentError, Reason.INVALID_FIELD
    )


async def test_an_insertion_is_merged_at_the_place_of_its_base_revision(client: Any) -> None:
    seen = await create(client, value="a\nb\nc")
    await edit(client, insert=pb.InsertEdit(new_string="top", insert_line=0))
    response = await edit(
        client,
        insert=pb.InsertEdit(new_string="new", insert_line=2),
        base_revision=seen.revision,
    )
    assert response.block.value == "top\na\nb\nnew\nc"
    assert response.merged
    newest, before, _ = await versions(client, seen.id)
    assert (newest.base_revision, before.base_revision) == (1, 0)


async def test_a_rewrite_is_merged_with_additions_of_others(client: Any) -> None:
    seen = await create(client, value="likes tea\nlives in Rome")
    await append(client, "has a cat")
    new = pb.RethinkEdit(new_memory="likes green tea\nlives in Rome")
    response = await edit(client, rethink=new, base_revision=seen.revision)
    assert response.block.value == "likes green tea\nlives in Rome\nhas a cat"
    assert response.merged
    again = await edit(
        client, rethink=pb.RethinkEdit(new_memory="new"), base_revision=response.block.revision
    )
    assert (again.block.value, again.merged) == ("new", False)


@pytest.mark.parametrize(
    "verb",
    [
        {"rethink": pb.RethinkEdit(new_memory="likes milk")},
        {"replace": pb.ReplaceEdit(old_content="tea", new_content="milk")},
        {"string_replace": pb.StringReplaceEdit(old_string="tea", new_string="milk")},
        {"patch": pb.PatchEdit(patch="@@\n-likes tea\n+likes milk")},
    ],
)
async def test_a_conflict_changes_nothing_and_shows_the_text(client: Any, verb: Any) -> None:
    seen = await create(client, value="likes tea")
    block = (await edit(client, rethink=pb.RethinkEdit(new_memory="likes coffee"))).block
    error = await failure(
        edit(client, base_revision=seen.revision, **verb), AbortedError, Reason.EDIT_CONFLICT
    )
    assert error.message.endswith("Edit its current text (revision 2), which is:\nlikes coffee")
    assert error.metadata == {"label": "human", "revision": "2"}
    assert len(await versions(client, block.id)) == 2
    # Without a base revision the edit fails, because the text is not there.
    if "rethink" not in verb:
        await failure(edit(client, **verb), FailedPreconditionError, Reason.EDIT_NOT_APPLICABLE)


async def test_text_missing_in_every_revision_is_not_a_conflict(client: Any) -> None:
    seen = await create(client, value="a")
    await append(client, "b")
    for verb in (
        {"string_replace": pb.StringReplaceEdit(old_string="x", new_string="y")},
        {"patch": pb.PatchEdit(patch="@@\n-x\n+y")},
    ):
        await failure(
            edit(client, base_revision=seen.revision, **verb),
            FailedPreconditionError,
            Reason.EDIT_NOT_APPLICABLE,
        )


async def test_edits_by_content_apply_to_the_newest_text(client: Any) -> None:
    seen = await create(client, value="a\nb")
    await append(client, "c")
    for verb, value in (
        ({"append": pb.AppendEdit(content="d")}, "a\nb\nc\nd"),
        ({"insert": pb.InsertEdit(new_string="e")}, "a\nb\nc\nd\ne"),
        ({"replace": pb.ReplaceEdit(old_content="b", new_content="B")}, "a\nB\nc\nd\ne"),
        ({"patch": pb.PatchEdit(patch="@@\n c\n+c2")}, "a\nB\nc\nc2\nd\ne"),
    ):
        response = await edit(client, base_revision=seen.revision, **verb)
        assert (response.block.value, response.merged) == (value, False)


async def test_an_unknown_base_revision_is_a_revision_mismatch(client: Any) -> None:
    block = await create(client, value="a")
    for attempt in (
        edit(client, rethink=pb.RethinkEdit(new_memory="b"), base_revision=2),
        edit(client, append=pb.AppendEdit(content="b"), base_revision=2),
        patch(client, "@@\n+b", base_revision=2),
        client.blocks.UpdateBlock(
            pb.UpdateBlockRequest(block_id=block.id, value="b", base_revision=2)
        ),
    ):
        await failure(attempt, AbortedError, Reason.REVISION_MISMATCH)


async def test_an_expected_revision_is_checked_before_merging(client: Any) -> None:
    await create(client, value="a")
    await append(client, "b")
    for verb in (
        {"rethink": pb.RethinkEdit(new_memory="c")},
        {"patch": pb.PatchEdit(patch="@@\n+c")},
        {"delete": pb.DeleteEdit()},
    ):
        await failure(
            edit(client, expected_revision=1, base_revision=1, **verb),
            AbortedError,
            Reason.REVISION_MISMATCH,
        )


async def test_a_merged_text_keeps_to_the_limit(client: Any) -> None:
    await create(client, value="a", limit=6)
    await append(client, "bcd")
    attempt = edit(client, rethink=pb.RethinkEdit(new_memory="a12"), base_revision=1)
    await failure(attempt, FailedPreconditionError, Reason.BLOCK_LIMIT_EXCEEDED)
    assert await memory(client) == {"human": "a\nbcd"}


async def test_the_api_merges_a_value_that_was_written_against_an_older_one(client: Any) -> None:
    block = await create(client, value="a\nb")
    await append(client, "c")
    request = pb.UpdateBlockRequest(
        block_id=block.id, value="A\nb", description="New.", base_revision=1, reason="pushed"
    )
    response = await client.blocks.UpdateBlock(request)
    assert (response.block.value, response.block.description) == ("A\nb\nc", "New.")
    assert response.merged
    newest = (await versions(client, block.id))[0]
    assert (newest.base_revision, newest.origin.reason) == (1, "pushed")
    conflict = pb.UpdateBlockRequest(block_id=block.id, value="0\nb\nc", base_revision=2)
    await failure(client.blocks.UpdateBlock(conflict), AbortedError, Reason.EDIT_CONFLICT)
    overwritten = pb.UpdateBlockRequest(block_id=block.id, value="x")
    response = await client.blocks.UpdateBlock(overwritten)
    assert (response.block.value, response.merged) == ("x", False)


async def test_every_verb_returns_its_changes(client: Any) -> None:
    await create(client, value="a")
    for verb, operation in (
        ({"append": pb.AppendEdit(content="b")}, "append"),
        ({"rename": pb.RenameEdit(description="New.")}, "rename"),
        ({"rename": pb.RenameEdit(new_label="human")}, ""),
        ({"rethink": pb.RethinkEdit(new_memory="a\nb")}, ""),
        ({"delete": pb.DeleteEdit()}, "delete"),
        ({"create": pb.CreateEdit(file_text="x")}, "create"),
        ({"patch": pb.PatchEdit(patch="@@\n-x\n+x")}, ""),
    ):
        response = await edit(client, **verb)
        assert [change.operation for change in response.changes] == [operation] * bool(operation)
        for change in response.changes:
            assert (change.block, change.diff) == (response.block, response.diff)


@pytest.mark.parametrize(
    "verb",
    [
        {"create": pb.CreateEdit(file_text="x")},
        {"patch": pb.PatchEdit(patch="@@\n-text\n+x")},
        {"patch": pb.PatchEdit(patch="*** Delete Block: human")},
        {"rename": pb.RenameEdit(description="x")},
        {"rethink": pb.RethinkEdit(new_memory="x"), "base_revision": 1},
    ],
)
async def test_agents_cannot_change_a_read_only_block(client: Any, verb: Any) -> None:
    block = await create(client, value="text", read_only=True)
    await client.blocks.UpdateBlock(pb.UpdateBlockRequest(block_id=block.id, value="text 2"))
    before = await versions(client, block.id)
    error = await failure(edit(client, **verb), FailedPreconditionError, Reason.BLOCK_READ_ONLY)
    assert error.message == "Error This block is read-only and cannot be edited."
    assert await versions(client, block.id) == before
    assert await memory(client) == {"human": "text 2"}


async def test_unknown_labels_name_the_known_ones_for_every_verb(client: Any) -> None:
    await create(client, "persona")
    for verb in (
        {"delete": pb.DeleteEdit()},
        {"rename": pb.RenameEdit(new_label="x")},
        {"insert": pb.InsertEdit(new_string="x")},
        {"patch": pb.PatchEdit(patch="@@\n+x")},
    ):
        error = await failure(edit(client, "gone", **verb), NotFoundError, Reason.BLOCK_NOT_FOUND)
        assert error.message == "Block field gone does not exist (available sections = persona)"


async def test_versions_have_the_kind_of_editor(client: Any) -> None:
    block = await create(client)
    for kind in (pb.EDITOR_KIND_AGENT, pb.EDITOR_KIND_SLEEPTIME_AGENT, pb.EDITOR_KIND_USER):
        await edit(client, append=pb.AppendEdit(content="x"), origin=pb.EditOrigin(kind=kind))
        assert (await versions(client, block.id))[0].origin.kind == kind
    unknown = pb.EditOrigin(kind=9)  # type: ignore[arg-type]
    attempt = edit(client, append=pb.AppendEdit(content="x"), origin=unknown)
    await failure(attempt, InvalidArgumentError, Reason.INVALID_FIELD)


async def test_an_edit_with_a_block_id_is_refused_if_the_label_names_another_block(
    client: Any,
) -> None:
    """A label can later refer to another block, or to none; then no block is created either."""
    block = await create(client, value="a")
    rethink: dict[str, Any] = {
        "rethink": pb.RethinkEdit(new_memory="b"),
        "block_id": block.id,
    }
    assert (await edit(client, **rethink)).block.value == "b"
    gone = pb.DetachBlockRequest(agent_id=AGENT, block_id=block.id)
    await client.blocks.DetachBlock(gone)
    with pytest.raises(NotFoundError) as none:
        await edit(client, **rethink)
    await create(client, value="another")
    with pytest.raises(NotFoundError) as other:
        await edit(client, **rethink)
    assert none.value.reason is other.value.reason is Reason.BLOCK_NOT_FOUND
    assert await memory(client) == {"human": "another"}
    with pytest.raises(InvalidArgumentError) as both:
        await patch(client, "@@\n-another\n+x", block_id=block.id)
    assert [violation.field for violation in both.value.violations] == ["block_id"]
