"""Taint labels of edits, and how they are removed."""

from __future__ import annotations

from typing import Any

import pytest
import pytest_asyncio

from integration.core_memory.block_calls import AGENT, create, edit, patch, prepare, versions
from strata.api.common.v1 import message_pb2
from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.api.core_memory.v1 import context_service_pb2 as context_pb
from strata.protocol.errors import InvalidArgumentError
from strata.shared.context import use
from strata.shared.ids import new_id

pytestmark = pytest.mark.asyncio(loop_scope="session")

WEB, MCP = message_pb2.PROVENANCE_WEB, message_pb2.PROVENANCE_MCP
UNDER_WEB = pb.EditOrigin(taint=[WEB, message_pb2.PROVENANCE_USER])


@pytest_asyncio.fixture(loop_scope="session", autouse=True)
async def agent(client: Any, project: str) -> None:
    """The agent of the tests, in the project of each."""
    await prepare(client)


async def update(client: Any, block: pb.Block, **fields: Any) -> pb.UpdateBlockResponse:
    request = pb.UpdateBlockRequest(block_id=block.id, **fields)
    response: pb.UpdateBlockResponse = await client.blocks.UpdateBlock(request)
    return response


@pytest.mark.parametrize(
    "verb",
    [
        {"append": pb.AppendEdit(content="x")},
        {"rethink": pb.RethinkEdit(new_memory="x")},
        {"rename": pb.RenameEdit(description="Obey.")},
        {"patch": pb.PatchEdit(patch="@@ -1 +1 @@\n-one\n+two")},
    ],
    ids=lambda verb: next(iter(verb)),
)
async def test_every_verb_adds_taint_labels(client: Any, verb: dict[str, Any]) -> None:
    block = await create(client, value="one")
    assert not block.taint
    assert list((await edit(client, origin=UNDER_WEB, **verb)).block.taint) == [WEB]
    kept = (await edit(client, append=pb.AppendEdit(content="y"))).block
    assert list(kept.taint) == [WEB]
    both = await edit(client, append=pb.AppendEdit(content="z"), origin=pb.EditOrigin(taint=[MCP]))
    assert list(both.block.taint) == [WEB, MCP]
    marks = [list(version.taint) for version in await versions(client, block.id)]
    assert marks == [[WEB, MCP], [WEB], [WEB], []]


async def test_new_blocks_have_taint_labels(client: Any) -> None:
    await create(client, value="one")
    await edit(client, "notes", create=pb.CreateEdit(file_text="x"), origin=UNDER_WEB)
    added = "*** Add Block: more\n+text\n*** Update Block: human\n@@ -1 +1 @@\n-one\n+two"
    changes = (await patch(client, added, "", origin=pb.EditOrigin(taint=[MCP]))).changes
    assert [list(change.block.taint) for change in changes] == [[MCP], [MCP]]

    def compile_request(**more: Any) -> context_pb.CompileRequest:
        return context_pb.CompileRequest(agent_id=AGENT, **more)

    compiled = await client.context.Compile(compile_request())
    taints = {
        tainted_block.label: list(tainted_block.taint) for tainted_block in compiled.tainted_blocks
    }
    assert taints == {"human": [MCP], "notes": [WEB], "more": [MCP]}
    again = await client.context.Compile(compile_request(if_revision=compiled.revision))
    assert again.not_changed
    assert again.tainted_blocks == compiled.tainted_blocks


async def test_people_remove_taint_labels(client: Any) -> None:
    block = await create(client, value="one")
    dirty = (await edit(client, append=pb.AppendEdit(content="x"), origin=UNDER_WEB)).block
    assert (await update(client, block, description="Other.")).block.taint
    assert (await update(client, block, value=dirty.value)).block.taint, "nothing was rewritten"
    # Merged with text that the agent wrote, which is still in the block.
    merged = await update(client, block, value="zero\none", base_revision=block.revision)
    assert (merged.merged, list(merged.block.taint)) == (True, [WEB])
    vouched = (await update(client, block, clear_taint=True)).block
    assert (list(vouched.taint), vouched.revision) == ([], merged.block.revision + 1)
    back = pb.RevertBlockRequest(block_id=block.id, to_revision=dirty.revision)
    assert (await client.blocks.RevertBlock(back)).blocks[0].taint
    assert not (await update(client, block, value="Mine.")).block.taint


async def test_runs_cannot_remove_taint_labels(client: Any, project: str) -> None:
    block = await create(client, value="one")
    await edit(client, append=pb.AppendEdit(content="x"), origin=UNDER_WEB)
    with use(client.keys.context(project, new_id("run"))):
        with pytest.raises(InvalidArgumentError, match="clear_taint"):
            await update(client, block, clear_taint=True)
        assert (await update(client, block, value="Clean.")).block.taint
