"""`ContextService` as the agent loop sees it."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from integration.core_memory.block_calls import prepare_blocks
from strata.api.common.v1 import tool_pb2
from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.api.core_memory.v1 import context_service_pb2 as context_pb
from strata.core_memory.domain.prompt.tool_rules import ToolRuleType
from strata.core_memory.settings import CoreMemorySettings
from strata.core_memory.store.blocks import PostgresBlockStore
from strata.protocol.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    Reason,
)
from strata.shared.context import use
from strata.shared.db import Database
from strata.shared.ids import new_id

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def compiled(client: Any, agent: str, **more: Any) -> context_pb.CompileResponse:
    request = context_pb.CompileRequest(agent_id=agent, agent_type="letta_v1_agent", **more)
    response: context_pb.CompileResponse = await client.context.Compile(request)
    return response


def new(label: str, value: str = "", **more: Any) -> pb.NewBlock:
    return pb.NewBlock(label=label, value=value, description=f"About {label}.", **more)


EXPECTED = """\
<memory_blocks>
The following memory blocks are currently engaged in your core memory unit:

<human>
<description>
About human.
</description>
<metadata>
- chars_current=9
- chars_limit=20000
</metadata>
<value>
Name: Sam
</value>
</human>

<persona>
<description>
About persona.
</description>
<metadata>
- read_only=true
- chars_current=0
- chars_limit=100
</metadata>
<value>

</value>
</persona>

</memory_blocks>"""


async def test_a_prepared_agent_compiles_to_the_specified_bytes(client: Any) -> None:
    agent = new_id("agent")
    blocks = await prepare_blocks(
        client,
        agent,
        blocks=[new("human", "Name: Sam"), new("persona", read_only=True, limit=100)],
    )
    assert [block.label for block in blocks] == ["human", "persona"]
    response = await compiled(client, agent)
    assert response.memory_section == EXPECTED
    assert dict(response.block_chars) == {"human": 9, "persona": 0}
    assert response.last_modified_time == blocks[0].update_time


async def test_compile_returns_not_changed_until_the_shown_memory_changes(client: Any) -> None:
    agent = new_id("agent")
    (block,) = await prepare_blocks(client, agent, blocks=[new("human", "a")])
    first = await compiled(client, agent)
    same = await compiled(client, agent, if_revision=first.revision)
    assert (same.not_changed, same.memory_section, same.revision) == (True, "", first.revision)
    assert dict(same.block_chars) == {"human": 1}
    assert same.last_modified_time == first.last_modified_time

    rule = tool_pb2.ToolRule(type=tool_pb2.TOOL_RULE_TYPE_EXIT_LOOP, tool_name="send")
    for change in ({"line_numbers": True}, {"tool_rules": [rule]}):
        other = await compiled(client, agent, if_revision=first.revision, **change)
        assert not other.not_changed
        assert other.revision != first.revision
        assert other.memory_section not in ("", first.memory_section)

    await client.blocks.EditBlock(
        pb.EditBlockRequest(agent_id=agent, label="human", append=pb.AppendEdit(content="b"))
    )
    after = await compiled(client, agent, if_revision=first.revision)
    assert not after.not_changed
    assert "<value>\na\nb\n</value>" in after.memory_section
    assert after.last_modified_time.ToDatetime() >= first.last_modified_time.ToDatetime()
    await client.blocks.DetachBlock(pb.DetachBlockRequest(agent_id=agent, block_id=block.id))
    gone = await compiled(client, agent, if_revision=after.revision)
    assert (gone.not_changed, gone.memory_section) == (False, "")
    assert not gone.HasField("last_modified_time")
    assert (await compiled(client, agent, if_revision=gone.revision)).not_changed


async def test_blocks_are_rendered_in_the_order_of_attachment(client: Any) -> None:
    agent, other = new_id("agent"), new_id("agent")
    (shared,) = await prepare_blocks(client, other, blocks=[new("zebra")])
    await prepare_blocks(client, agent, blocks=[new("b"), new("a")], block_ids=[shared.id])
    await client.blocks.CreateBlock(
        pb.CreateBlockRequest(agent_id=agent, block=pb.NewBlock(label="A0"))
    )
    for _ in range(3):
        section = (await compiled(client, agent)).memory_section
        places = [section.index(f"<{label}>") for label in ("b", "a", "zebra", "A0")]
        assert places == sorted(places)
        await client.blocks.EditBlock(
            pb.EditBlockRequest(agent_id=agent, label="a", append=pb.AppendEdit(content="x"))
        )


async def test_all_rule_types_are_converted_from_the_proto(client: Any) -> None:
    agent = new_id("agent")
    for kind in ToolRuleType:
        number = tool_pb2.ToolRuleType.Value(f"TOOL_RULE_TYPE_{kind.name}")
        rule = tool_pb2.ToolRule(
            type=number, tool_name="tool_x", children=["tool_y"], max_count_limit=7
        )
        section = (await compiled(client, agent, tool_rules=[rule])).memory_section
        silent = kind in (ToolRuleType.RUN_FIRST, ToolRuleType.REQUIRES_APPROVAL)
        assert ("tool_x" in section) is not silent
    with pytest.raises(InvalidArgumentError) as caught:
        await compiled(client, agent, tool_rules=[tool_pb2.ToolRule(tool_name="x")])
    assert caught.value.violations[0].field == "tool_rules[0].type"


async def test_an_invalid_revision_is_refused_or_ignored(client: Any) -> None:
    agent = new_id("agent")
    await prepare_blocks(client, agent, blocks=[new("human")])
    for text in ("nonsense", ".", "0", "." * 200):
        assert not (await compiled(client, agent, if_revision=text)).not_changed
    with pytest.raises(InvalidArgumentError):
        await compiled(client, agent, if_revision="\0")


async def test_repeated_preparations_return_the_first_blocks(client: Any) -> None:
    agent = new_id("agent")
    first = await prepare_blocks(client, agent, blocks=[new("human", "a"), new("persona")])
    again = await asyncio.gather(
        *(
            prepare_blocks(client, agent, blocks=[new("human", "a"), new("persona")])
            for _ in range(4)
        )
    )
    assert again == [first] * 4


async def test_concurrent_preparations_create_the_blocks_once(client: Any) -> None:
    agent = new_id("agent")
    results = await asyncio.gather(
        *(prepare_blocks(client, agent, blocks=[new("human")]) for _ in range(4))
    )
    assert results == [results[0]] * 4
    listed = await client.blocks.ListBlocks(pb.ListBlocksRequest())
    assert list(listed.blocks) == results[0]


async def test_a_failed_preparation_stores_nothing(client: Any) -> None:
    agent = new_id("agent")
    (taken,) = await prepare_blocks(client, new_id("agent"), blocks=[new("human")])
    failures: list[tuple[dict[str, Any], type[Exception], Reason]] = [
        ({"block_ids": [new_id("block")]}, NotFoundError, Reason.BLOCK_NOT_FOUND),
        ({"block_ids": [taken.id]}, AlreadyExistsError, Reason.NAME_TAKEN),
    ]
    for more, kind, reason in failures:
        with pytest.raises(kind) as caught:
            await prepare_blocks(client, agent, blocks=[new("human")], **more)
        assert getattr(caught.value, "reason", None) is reason
    with pytest.raises(FailedPreconditionError):
        await prepare_blocks(client, agent, blocks=[new("a"), new("b", "12", limit=1)])
    with pytest.raises(AlreadyExistsError):
        await prepare_blocks(client, agent, blocks=[new("a"), new("a")])
    assert len((await client.blocks.ListBlocks(pb.ListBlocksRequest())).blocks) == 1
    assert [block.label for block in await prepare_blocks(client, agent, blocks=[new("a")])] == [
        "a"
    ]


async def test_release_deletes_own_blocks_and_detaches_shared_ones(client: Any) -> None:
    agent, other = new_id("agent"), new_id("agent")
    (shared,) = await prepare_blocks(client, other, blocks=[new("shared")])
    await prepare_blocks(client, agent, blocks=[new("human")], block_ids=[shared.id])
    await client.blocks.EditBlock(
        pb.EditBlockRequest(agent_id=agent, label="own", create=pb.CreateEdit(file_text="x"))
    )
    request = context_pb.ReleaseAgentRequest(agent_id=agent)
    released = await client.context.ReleaseAgent(request)
    assert (released.deleted_blocks, released.detached_blocks) == (2, 1)
    again = await client.context.ReleaseAgent(request)
    assert (again.deleted_blocks, again.detached_blocks) == (0, 0)
    listed = await client.blocks.ListBlocks(pb.ListBlocksRequest())
    assert [block.id for block in listed.blocks] == [shared.id]


async def test_another_project_sees_no_memory(client: Any) -> None:
    agent = new_id("agent")
    await prepare_blocks(client, agent, blocks=[new("human", "secret")])
    with use(client.keys.context(new_id("project"))):
        response = await compiled(client, agent)
        assert (response.memory_section, response.last_modified_time.seconds) == ("", 0)
        released = await client.context.ReleaseAgent(context_pb.ReleaseAgentRequest(agent_id=agent))
        assert (released.deleted_blocks, released.detached_blocks) == (0, 0)
    assert "secret" in (await compiled(client, agent)).memory_section


async def test_compile_is_one_statement_that_uses_indexes(
    client: Any, settings: CoreMemorySettings
) -> None:
    agent = new_id("agent")
    await prepare_blocks(client, agent, blocks=[new("human", "a")])
    database = Database(settings.database_url)
    try:
        with database.statistics.record() as texts:
            await PostgresBlockStore(database).agent_memory(agent, "")
        (statement,) = texts
        async with database.transaction(read_only=True) as connection:
            # With few rows a scan is cheap; the test checks whether it can be avoided.
            await connection.driver.fetch("SET LOCAL enable_seqscan = off")
            explain = "EXPLAIN " + re.sub(r"\$\d+(::[\w.]+)?", "'x'", statement)
            plan = "\n".join(row[0] for row in await connection.driver.fetch(explain))
    finally:
        await database.close()
    assert "Seq Scan" not in plan
    assert plan.count("project_id = ") >= 2
