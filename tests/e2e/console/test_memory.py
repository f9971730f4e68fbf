"""Memory in the console: blocks, recall, archival memory, files, and the context window."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime

import pytest

from console_client import HOSTILE, ConsoleClient, shown
from doubles.script import say
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.archival.v1 import passage_service_pb2 as passage_pb
from strata.api.common.v1 import message_pb2
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.api.core_memory.v1 import file_service_pb2 as file_pb
from uploading import make_folder
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

HTMX = {"hx-request": "true"}
MIB = 1024 * 1024


async def agent_with(system: System, value: str) -> tuple[agent_pb.Agent, str]:
    """Creates an agent with one block; returns it and the id of the block."""
    block = block_pb.NewBlock(label="notes", value=value)
    agent = await system.make_agent(blocks=[block])
    return agent, (await system.block(agent, "notes")).id


async def test_block_is_changed_with_its_history(system: System, ann: ConsoleClient) -> None:
    agent, block_id = await agent_with(system, "One.\nTwo.")
    assert "One.\nTwo." in (await ann.get(f"/agents/{agent.id}/memory")).text
    fields = {"description": "Notes.", "limit": "500", "base_revision": "1"}
    response = await ann.post(
        f"/blocks/{block_id}",
        {**fields, "value": "One.\r\nTwo, too.", "reason": "a <test>"},
    )
    assert response.headers["location"] == f"/console/blocks/{block_id}"
    block = await system.block(agent, "notes")
    assert (block.value, block.limit, block.description) == ("One.\nTwo, too.", 500, "Notes.")
    page = (await ann.get(f"/blocks/{block_id}")).text
    assert "Revision 2" in page
    assert "a &lt;test&gt;" in page
    diff = (await ann.get(f"/blocks/{block_id}/diff?to=2", headers=HTMX)).text
    assert ("-Two." in diff, "+Two, too." in diff, "<html" in diff) == (True, True, False)
    assert "What revision 2 changed" in (await ann.get(f"/blocks/{block_id}/diff?to=2")).text
    blame = (await ann.get(f"/blocks/{block_id}/blame")).text
    first, second = re.findall(r'<td class="number"><a href="[^"]+">(\d+)</a>', blame)
    assert (first, second) == ("1", "2")


async def test_lines_of_a_long_block_are_paged(system: System, ann: ConsoleClient) -> None:
    _, block_id = await agent_with(system, "\n".join(f"line {n}." for n in range(1, 1202)))
    first = (await ann.get(f"/blocks/{block_id}/blame?revision=1")).text
    assert ("line 1000." in first, "line 1001." in first) == (True, False)
    [path] = re.findall(r'class="button" href="/console([^"]+)">Next page', first)
    rest = (await ann.get(html.unescape(path))).text
    assert ("line 1000." in rest, "line 1001." in rest, "line 1201." in rest) == (False, True, True)
    assert "Next page" not in rest


async def test_concurrent_change_is_merged_or_refused(system: System, ann: ConsoleClient) -> None:
    agent, block_id = await agent_with(system, "One.\nTwo.\nThree.")
    await system.blocks.UpdateBlock(
        block_pb.UpdateBlockRequest(block_id=block_id, value="One!\nTwo.\nThree.")
    )
    fields = {"description": "", "base_revision": "1"}
    await ann.post(f"/blocks/{block_id}", {**fields, "value": "One.\nTwo.\nThree!"})
    assert (await system.block(agent, "notes")).value == "One!\nTwo.\nThree!"
    refused = await ann.post(f"/blocks/{block_id}", {**fields, "value": "Uno.\nTwo.\nThree."})
    assert (refused.status_code, "EDIT_CONFLICT" in refused.text) == (409, True)


async def test_edit_is_undone_and_revision_restored(system: System, ann: ConsoleClient) -> None:
    agent, block_id = await agent_with(system, "First.")
    for value in ("First.\nSecond.", "First.\nSecond.\nThird."):
        await system.blocks.UpdateBlock(block_pb.UpdateBlockRequest(block_id=block_id, value=value))
    await ann.post(f"/blocks/{block_id}/revert", {"revision": "2"})
    assert (await system.block(agent, "notes")).value == "First.\nThird."
    await ann.post(f"/blocks/{block_id}/revert", {"to_revision": "1"})
    assert (await system.block(agent, "notes")).value == "First."
    for revision in ("2 or 3", "9" * 5000):
        response = await ann.post(f"/blocks/{block_id}/revert", {"revision": revision})
        assert (response.status_code, "not a whole number" in response.text) == (400, True)


async def test_memory_is_shown_as_of_an_earlier_time(system: System, ann: ConsoleClient) -> None:
    agent, block_id = await agent_with(system, "The old text.")
    before = datetime.now(UTC).isoformat()
    await system.blocks.UpdateBlock(
        block_pb.UpdateBlockRequest(block_id=block_id, value="The new text.")
    )
    for path in (f"/agents/{agent.id}/memory", f"/blocks/{block_id}"):
        now = (await ann.get(path)).text
        assert ("The new text." in now, "The old text." in now) == (True, False)
        then = (await ann.get(path, params={"as_of": before})).text
        assert ("The new text." in then, "The old text." in then) == (False, True)
        assert (await ann.get(path, params={"as_of": "yesterday"})).status_code == 400


async def test_block_is_created_and_deleted(system: System, ann: ConsoleClient) -> None:
    agent = await system.make_agent()
    response = await ann.post(
        f"/agents/{agent.id}/blocks",
        {"label": "projects", "value": "Strata.", "limit": "100", "read_only": "on"},
    )
    block = await system.block(agent, "projects")
    assert response.headers["location"] == f"/console/blocks/{block.id}"
    assert (block.value, block.limit, block.read_only) == ("Strata.", 100, True)
    wrong = await ann.post(f"/agents/{agent.id}/blocks", {"label": "no good label"}, headers=HTMX)
    assert (wrong.status_code, "label" in wrong.text) == (400, True)
    await ann.post(f"/blocks/{block.id}/delete")
    listing = await system.blocks.ListBlocks(block_pb.ListBlocksRequest(agent_id=agent.id))
    assert "projects" not in {block.label for block in listing.blocks}


async def test_large_hostile_block_is_shown_as_text(system: System, ann: ConsoleClient) -> None:
    text = HOSTILE + "\n" + "x " * 499_000
    made = await system.agents.CreateAgent(
        agent_pb.CreateAgentRequest(
            name="large memory",
            model=agent_pb.ModelConfig(handle="openai/test-model", context_window=2 * MIB),
            blocks=[block_pb.NewBlock(label="notes", value=text, limit=1_000_000)],
        )
    )
    agent = made.agent
    block_id = (await system.block(agent, "notes")).id
    page = (await ann.get(f"/agents/{agent.id}/memory")).text
    assert shown(HOSTILE) in page
    assert "<script>alert" not in page
    assert len(page) < MIB / 4, "the list shows the beginning of the text"
    form = (await ann.get(f"/blocks/{block_id}")).text
    assert "<script>alert" not in form
    # A form that replaced characters would change the block when it is saved.
    assert "\u202eevil\u202c" in form
    fields = {"description": "", "base_revision": "1", "value": text}
    response = await ann.post(f"/blocks/{block_id}", fields)
    assert response.status_code == 303, response.text
    assert (await system.block(agent, "notes")).value == text


async def test_untrusted_content_is_marked_until_a_person_removes_the_label(
    system: System, ann: ConsoleClient
) -> None:
    agent, block_id = await agent_with(system, "")
    await system.blocks.EditBlock(
        block_pb.EditBlockRequest(
            agent_id=agent.id,
            label="notes",
            append=block_pb.AppendEdit(content="From a page."),
            origin=block_pb.EditOrigin(taint=[message_pb2.PROVENANCE_WEB]),
        )
    )
    await system.passages.InsertPassage(
        passage_pb.InsertPassageRequest(
            agent_id=agent.id,
            passage=passage_pb.NewPassage(
                text="From a server.",
                origin=passage_pb.PassageOrigin(taint=[message_pb2.PROVENANCE_MCP]),
            ),
        )
    )
    assert "untrusted: from the web" in (await ann.get(f"/agents/{agent.id}/memory")).text
    for path in (f"/blocks/{block_id}", f"/blocks/{block_id}/blame"):
        assert "untrusted: from the web" in (await ann.get(path)).text
    archive = (await ann.get(f"/agents/{agent.id}/archival")).text
    assert "untrusted: from an MCP server" in archive
    await ann.post(
        f"/blocks/{block_id}",
        {"value": "From a page.", "description": "", "base_revision": "2", "clear_taint": "on"},
    )
    assert "untrusted" not in (await ann.get(f"/agents/{agent.id}/memory")).text


async def test_recall_explains_why_messages_were_found(system: System, ann: ConsoleClient) -> None:
    agent = await system.make_agent()
    system.model.script(say("Kestrels nest in the old tower."))
    await system.send(agent, "Where do the kestrels nest?")
    path = f"/agents/{agent.id}/recall"
    page = (await ann.get(path, params={"q": "kestrels", "mode": "words"})).text
    assert "Kestrels nest in the old tower." in page
    assert "By words" in page
    assert "Rank by words" in page
    assert "Explanation" in page
    part = (await ann.get(path, params={"q": "kestrels"}, headers=HTMX)).text
    assert part.strip().startswith('<div id="hits"')
    assert (
        "No message matches."
        in (await ann.get(path, params={"q": "zeppelin", "mode": "words"})).text
    )


async def test_passages_are_stored_found_and_deleted(system: System, ann: ConsoleClient) -> None:
    agent = await system.make_agent()
    path = f"/agents/{agent.id}/archival"
    await ann.post(path, {"text": "The boat is called Merganser.", "tags": "boat, blue"})
    await ann.post(path, {"text": HOSTILE, "tags": ""})
    page = (await ann.get(path)).text
    assert "The boat is called Merganser." in page
    assert shown(HOSTILE) in page
    assert "<script>alert" not in page
    assert "Merganser" not in (await ann.get(path, params={"tag": "red"})).text
    matches = (await ann.get(path, params={"q": "Merganser"}, headers=HTMX)).text
    assert "The boat is called Merganser." in matches
    assert "Rank by words" in matches
    listing = await system.passages.ListPassages(
        passage_pb.ListPassagesRequest(agent_id=agent.id, tags=["boat"])
    )
    assert list(listing.passages[0].tags) == ["blue", "boat"]
    await ann.post(f"{path}/{listing.passages[0].id}/delete")
    assert "Merganser" not in (await ann.get(path)).text


async def test_file_is_uploaded_read_and_deleted(system: System, ann: ConsoleClient) -> None:
    agent = await system.make_agent()
    path = f"/agents/{agent.id}"
    await ann.post(f"{path}/folders", {"name": "console manuals", "description": "Plants."})
    [folder] = (
        await system.files.ListFolders(file_pb.ListFoldersRequest(agent_id=agent.id))
    ).folders
    assert (folder.name, folder.description) == ("console manuals", "Plants.")
    data = b"<b>Water</b> it.\n" * 60_000
    upload = f"{path}/folders/{folder.id}/upload"
    row = await ann.put(f"{upload}?name=a%20%3Ci%3E.md", data)
    assert row.status_code == 200, row.text
    assert "a &lt;i&gt;.md" in row.text
    again = await ann.put(f"{upload}?name=a%20%3Ci%3E.md", b"other")
    assert (again.status_code, "NAME_TAKEN" in again.text) == (409, True)
    assert (await ann.put(f"{upload}?name=a%20%3Ci%3E.md&replace=yes", b"Dry.")).status_code == 200
    await ann.put(f"{upload}?name=large.md", data)
    for kind in ("application/x-www-form-urlencoded", "multipart/form-data"):
        replaced = await ann.put(f"{upload}?name=large.md&replace=yes", data, content_type=kind)
        assert replaced.status_code == 200, replaced.text
    listing = await system.files.ListFiles(file_pb.ListFilesRequest(folder_id=folder.id))
    files = {file.name: file for file in listing.files}
    assert files["large.md"].size_bytes == len(data)
    async for watched in system.files.WatchFile(
        file_pb.WatchFileRequest(file_id=files["large.md"].id)
    ):
        if watched.file.line_count:
            break
    text = (await ann.get(f"{path}/files/{files['large.md'].id}")).text
    assert "&lt;b&gt;Water&lt;/b&gt; it." in text
    assert "Next lines" in text
    assert (
        "Lines 60,000 to"
        in (await ann.get(f"{path}/files/{files['large.md'].id}", params={"line": "60000"})).text
    )
    progress = (await ann.get(f"{path}/files/{files['large.md'].id}/progress")).text
    assert "large.md" in progress
    assert "console manuals" in (await ann.get(f"{path}/files")).text
    await ann.post(f"{path}/files/{files['large.md'].id}/delete")
    listing = await system.files.ListFiles(file_pb.ListFilesRequest(folder_id=folder.id))
    assert [file.name for file in listing.files] == ["a <i>.md"]


async def test_folder_is_attached_and_detached(system: System, ann: ConsoleClient) -> None:
    agent = await system.make_agent()
    folder = await make_folder(system, f"shared {agent.id[-8:]}")
    path = f"/agents/{agent.id}/folders"
    await ann.post(f"{path}/attach", {"folder_id": folder.id})
    attached = await system.files.ListFolders(file_pb.ListFoldersRequest(agent_id=agent.id))
    assert [other.id for other in attached.folders] == [folder.id]
    await ann.post(f"{path}/detach", {"folder_id": folder.id})
    attached = await system.files.ListFolders(file_pb.ListFoldersRequest(agent_id=agent.id))
    assert list(attached.folders) == []


async def test_context_window_is_shown_by_part(system: System, ann: ConsoleClient) -> None:
    agent = await system.make_agent()
    system.model.script(say("Hello."))
    await system.send(agent, "Hello.")
    window = await system.agents.GetContextWindow(
        agent_pb.GetContextWindowRequest(agent_id=agent.id)
    )
    page = (await ann.get(f"/agents/{agent.id}/context")).text
    for part in window.parts:
        if part.tokens:
            assert f'<rect class="part-{part.name}"' in page
            assert f'<td class="number">{part.tokens:,}</td>' in page
    assert f"of {window.context_window:,} tokens" in page
    assert f"{window.compaction_tokens:,} tokens" in page
    widths = [float(width) for width in re.findall(r' y="0" width="([\d.]+)" height="60"><t', page)]
    assert sum(widths[:-1]) == pytest.approx(
        1000 * window.used_tokens / window.context_window, rel=0.02
    )


async def test_window_is_compacted_on_demand(system: System, ann: ConsoleClient) -> None:
    agent = await system.make_agent()
    system.model.respond(lambda _: say("Hello. " * 30))
    for number in range(6):
        await system.send(agent, f"<i>Message</i> {number}. " + "word " * 100)
    system.model.respond(lambda _: say("They said hello."))
    before = (await ann.get(f"/agents/{agent.id}/context")).text
    fate = dict(
        re.findall(
            r'<tr id="preview-(message-[\w-]+)"><td class="short"><span [^>]+>([^<]+)<', before
        )
    )
    assert shown("<i>Message</i> 0.") in before
    assert "<i>Message" not in before
    response = await ann.post(f"/agents/{agent.id}/compact", headers=HTMX)
    assert "They said hello." in response.text
    request = agent_pb.PreviewCompactionRequest(agent_id=agent.id)
    left = (await system.agents.PreviewCompaction(request)).messages
    assert {id_ for id_, outcome in fate.items() if outcome == "stays"} == {
        message.message_id for message in left if message.role != message_pb2.ROLE_SUMMARY
    }
    assert set(fate.values()) == {"stays", "is summarised"}
    assert "Summary of" in (await ann.get(f"/agents/{agent.id}/chat")).text
