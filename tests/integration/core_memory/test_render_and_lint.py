"""RenderMemory and LintMemory: results and number of statements."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from integration.core_memory.block_calls import create, prepare
from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.api.core_memory.v1 import context_service_pb2 as context_pb
from strata.api.core_memory.v1 import file_service_pb2 as file_pb
from strata.core_memory.domain.prompt.compilation import CompileQuery, FileLimits, compile_memory
from strata.core_memory.domain.prompt.memory_section import MemoryForm
from strata.core_memory.store.blocks import PostgresBlockStore
from strata.protocol.errors import InvalidArgumentError, NotFoundError, Reason
from strata.shared.db import Database
from strata.shared.ids import new_id

pytestmark = pytest.mark.asyncio(loop_scope="session")

NUMBERED_EMPTY = """\
<memory_blocks>
The following memory blocks are currently engaged in your core memory unit:


</memory_blocks>"""


@pytest_asyncio.fixture(loop_scope="session")
async def database(urls: Any) -> AsyncIterator[Database]:
    opened = Database(urls.service_url)
    yield opened
    await opened.close()


@pytest_asyncio.fixture(loop_scope="session")
async def agent(client: Any) -> str:
    return await prepare(client, new_id("agent"))


async def render(client: Any, agent: str, **more: Any) -> pb.RenderMemoryResponse:
    request = pb.RenderMemoryRequest(agent_id=agent, **more)
    response: pb.RenderMemoryResponse = await client.blocks.RenderMemory(request)
    return response


async def compiled(client: Any, agent: str, **more: Any) -> context_pb.CompileResponse:
    response: context_pb.CompileResponse = await client.context.Compile(
        context_pb.CompileRequest(agent_id=agent, **more)
    )
    return response


async def folder(client: Any, agent: str) -> None:
    made = await client.files.CreateFolder(file_pb.CreateFolderRequest(name="docs"))
    await client.files.AttachFolder(
        file_pb.AttachFolderRequest(agent_id=agent, folder_id=made.folder.id)
    )


async def test_rendered_memory_equals_the_text_of_the_prompt(client: Any, agent: str) -> None:
    blocks = [
        await create(client, "human", "Name: Sam", agent_id=agent, description="About."),
        await create(
            client, "policy", "1\n2", agent_id=agent, description="About.", read_only=True, limit=3
        ),
    ]
    rendered = await render(client, agent)
    assert rendered.text == (await compiled(client, agent)).memory_section
    assert list(rendered.blocks) == blocks
    assert rendered.last_modified_time == blocks[1].update_time
    numbered = await render(client, agent, line_numbers=True)
    assert numbered.text == (await compiled(client, agent, line_numbers=True)).memory_section
    assert "- warning=nearly full: 100% of chars_limit used\n" in numbered.text
    assert "1→ 1\n2→ 2\n" in numbered.text


async def test_an_agent_without_blocks_is_shown_as_the_model_sees_it(
    client: Any, agent: str
) -> None:
    rendered = await render(client, agent)
    assert (rendered.text, len(rendered.blocks)) == ("", 0)
    assert not rendered.HasField("last_modified_time")
    assert (await render(client, agent, line_numbers=True)).text == NUMBERED_EMPTY


async def test_rendering_and_linting_an_unknown_agent_is_not_found(client: Any) -> None:
    for call in (
        render(client, new_id("agent")),
        client.blocks.LintMemory(pb.LintMemoryRequest(agent_id=new_id("agent"))),
    ):
        with pytest.raises(NotFoundError) as caught:
            await call
        assert caught.value.reason is Reason.AGENT_NOT_FOUND


async def test_folders_are_part_of_the_compiled_memory(client: Any, agent: str) -> None:
    await create(client, "human", "x", agent_id=agent, description="About.")
    without = await compiled(client, agent)
    assert not without.has_folders
    await folder(client, agent)
    with_folder = await compiled(client, agent, if_revision=without.revision)
    assert with_folder.has_folders
    assert with_folder.memory_section.startswith(without.memory_section + "\n\n<directories>\n")
    assert "- max_files_open=5\n" in with_folder.memory_section
    assert (await render(client, agent)).text == with_folder.memory_section
    same = await compiled(client, agent, if_revision=with_folder.revision)
    assert (same.not_changed, same.has_folders) == (True, True)
    fewer = await compiled(client, agent, if_revision=with_folder.revision, max_files_open=3)
    assert "- max_files_open=3\n" in fewer.memory_section
    for agent_type in ("react_agent", "workflow_agent"):
        tool_first = await compiled(client, agent, agent_type=agent_type)
        assert tool_first.memory_section.startswith("<directories>\n")
        assert dict(tool_first.block_revisions) == {"human": 1}


async def test_memory_of_folders_only_is_compiled(client: Any, agent: str) -> None:
    await folder(client, agent)
    alone = await compiled(client, agent)
    assert alone.memory_section.startswith("<directories>\n")
    assert (await compiled(client, agent, if_revision=alone.revision)).not_changed


async def test_compile_always_returns_block_revisions(client: Any, agent: str) -> None:
    block = await create(client, "human", "x", agent_id=agent, description="About.")
    await create(client, "notes", "", agent_id=agent, description="About.")
    await client.blocks.UpdateBlock(pb.UpdateBlockRequest(block_id=block.id, value="y"))
    first = await compiled(client, agent)
    same = await compiled(client, agent, if_revision=first.revision)
    for response in (first, same):
        assert dict(response.block_revisions) == {"human": 2, "notes": 1}
    assert same.not_changed


@pytest.mark.parametrize("field", ["max_files_open", "per_file_view_window_char_limit"])
async def test_invalid_limits_are_refused(client: Any, agent: str, field: str) -> None:
    for number in (-1, 2**31 - 1):
        with pytest.raises(InvalidArgumentError) as caught:
            await compiled(client, agent, **{field: number})
        assert [violation.field for violation in caught.value.violations] == [field]


async def test_lint_finds_problems_in_a_block_and_across_blocks(client: Any, agent: str) -> None:
    human = await create(
        client, "human", "Sam likes tea\nSam is ill today", agent_id=agent, description="About."
    )
    notes = await create(
        client, "notes", "sam likes tea.", agent_id=agent, description="About.", limit=15
    )
    response = await client.blocks.LintMemory(pb.LintMemoryRequest(agent_id=agent))
    assert [(finding.rule, finding.block_id, finding.line) for finding in response.findings] == [
        (pb.LINT_RULE_RELATIVE_DATE, human.id, 2),
        (pb.LINT_RULE_NEARLY_FULL, notes.id, 0),
        (pb.LINT_RULE_DUPLICATE, notes.id, 1),
    ]
    duplicate = response.findings[2]
    assert (duplicate.label, duplicate.text) == ("notes", "sam likes tea.")
    assert (duplicate.other_label, duplicate.other_line) == ("human", 1)
    alone = await client.blocks.LintMemory(pb.LintMemoryRequest(block_id=notes.id))
    assert [finding.rule for finding in alone.findings] == [pb.LINT_RULE_NEARLY_FULL]
    for request in (
        pb.LintMemoryRequest(),
        pb.LintMemoryRequest(agent_id=agent, block_id=human.id),
    ):
        with pytest.raises(InvalidArgumentError):
            await client.blocks.LintMemory(request)


async def test_a_changed_compilation_takes_two_statements_and_an_unchanged_one_takes_one(
    client: Any, agent: str, database: Database
) -> None:
    await create(client, "human", "x", agent_id=agent, description="About.")
    await folder(client, agent)
    store = PostgresBlockStore(database)
    query = CompileQuery(agent, MemoryForm.of("", line_numbers=False), limits=FileLimits(5, 100))
    transactions = database.statistics.transactions
    with database.statistics.record() as texts:
        first = await compile_memory(store, query)
    assert first.section is not None
    assert len(texts) == 2, "blocks; folders, without open files"
    known = CompileQuery(agent, query.form, limits=query.limits, if_revision=first.revision)
    with database.statistics.record() as texts:
        same = await compile_memory(store, known)
    assert same.section is None
    assert len(texts) == 1
    assert database.statistics.transactions == transactions
