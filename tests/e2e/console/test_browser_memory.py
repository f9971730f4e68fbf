"""Memory, files and the context window in Chromium."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Browser, Route, expect

from browser import Window, open_window
from doubles.script import say
from strata.api.common.v1 import message_pb2
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from uploading import make_folder, upload
from whole_system import System

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.child_process]


async def test_block_is_edited_explained_and_undone(system: System, window: Window) -> None:
    agent = await system.make_agent(blocks=[block_pb.NewBlock(label="human", value="Likes tea.")])
    await system.blocks.EditBlock(
        block_pb.EditBlockRequest(
            agent_id=agent.id,
            label="human",
            append=block_pb.AppendEdit(content="Read a page."),
            origin=block_pb.EditOrigin(
                kind=block_pb.EDITOR_KIND_AGENT, taint=[message_pb2.PROVENANCE_WEB]
            ),
        )
    )
    page = window.page
    await page.goto(f"/console/agents/{agent.id}/memory")
    await expect(page.get_by_text("untrusted: from the web")).to_be_visible()
    assert await window.accessibility_faults() == []
    await page.get_by_role("link", name="human").click()
    await page.get_by_label("Text", exact=True).fill("Likes tea.\nRead a page.\nHas a cat.")
    await page.get_by_label("Reason, kept in the history").fill("told by phone")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_text("told by phone")).to_be_visible()
    await page.get_by_text("Revision 3").click()
    await expect(page.locator(".diff .add")).to_have_text("+Has a cat.")
    assert await window.accessibility_faults() == []
    await page.get_by_role("button", name="Undo this edit").first.click()
    await expect(page.get_by_text("Revision 4")).to_be_visible()
    assert (await system.block(agent, "human")).value == "Likes tea.\nRead a page."
    await page.get_by_role("link", name="Who wrote each line").first.click()
    await expect(page.get_by_role("row").filter(has_text="Read a page.")).to_contain_text(
        "the agent"
    )
    assert await window.accessibility_faults() == []


async def test_a_revision_unfolded_before_the_scripts_load_shows_its_change(
    system: System, window: Window
) -> None:
    agent = await system.make_agent(blocks=[block_pb.NewBlock(label="human", value="Likes tea.")])
    edited = await system.blocks.EditBlock(
        block_pb.EditBlockRequest(
            agent_id=agent.id,
            label="human",
            append=block_pb.AppendEdit(content="Has a cat."),
        )
    )
    has_unfolded = asyncio.Event()

    async def hold(route: Route) -> None:
        await has_unfolded.wait()
        await route.fallback()

    page = window.page
    await page.route("**/htmx.min.js", hold)
    await page.goto(f"/console/blocks/{edited.block.id}", wait_until="commit")
    await page.get_by_text("Revision 2").click()
    has_unfolded.set()
    await expect(page.locator(".diff .add")).to_have_text("+Has a cat.")


async def test_recall_and_archival_memory_are_searched(system: System, window: Window) -> None:
    agent = await system.make_agent()
    system.model.script(say("The kestrels nest in the tower."))
    await system.send(agent, "Where do kestrels nest?")
    page = window.page
    await page.goto(f"/console/agents/{agent.id}/recall")
    await page.keyboard.type("kestrels")
    await page.keyboard.press("Enter")
    hit = page.get_by_role("region", name="Match 1")
    await expect(hit).to_contain_text("kestrels nest")
    await hit.locator(".score summary").click()
    await expect(hit.get_by_text("Rank by words")).to_be_visible()
    assert await window.accessibility_faults() == []

    await page.get_by_role("link", name="Archival").click()
    await page.get_by_text("New passage").click()
    await page.get_by_label("Text", exact=True).fill("The boat is called Merganser.")
    await page.get_by_role("button", name="Store").click()
    await expect(page.get_by_text("The boat is called Merganser.")).to_be_visible()
    await page.get_by_label("Words or a question").fill("Merganser")
    await page.get_by_role("button", name="Search").click()
    await expect(page.locator("#passages .score")).to_have_count(1)
    assert await window.accessibility_faults() == []


async def test_file_is_uploaded_with_progress(system: System, window: Window) -> None:
    agent = await system.make_agent()
    page = window.page
    await page.goto(f"/console/agents/{agent.id}/files")
    await page.get_by_label("Name", exact=True).fill(f"browser {agent.id[-8:]}")
    await page.get_by_role("button", name="Create and attach").click()
    await expect(page.get_by_label("Upload files")).to_be_visible()
    # The script that uploads must have been loaded.
    await page.wait_for_load_state()
    await page.get_by_label("Upload files").set_input_files(
        {"name": "plants.md", "mimeType": "text/markdown", "buffer": b"Water them.\n" * 1000}
    )
    row = page.locator("li.file")
    await expect(row).to_contain_text("plants.md")
    await expect(page.get_by_role("status").filter(has_text="is stored")).to_be_visible()
    # The row polls until the file is ready; the link appears after that.
    await row.get_by_role("link", name="plants.md").click()
    await expect(page.get_by_text("Water them.").first).to_be_visible()
    assert await window.accessibility_faults() == []


async def test_context_window_is_a_bar_with_a_legend(system: System, window: Window) -> None:
    agent = await system.make_agent()
    system.model.script(say("Hello."))
    await system.send(agent, "Hello.")
    page = window.page
    await page.goto(f"/console/agents/{agent.id}/context")
    bar = page.get_by_role("img", name="Context window")
    await expect(bar).to_be_visible()
    for name in ("Instructions", "Memory blocks", "Tools", "Messages"):
        await expect(page.get_by_role("rowheader", name=name)).to_be_visible()
    assert await bar.locator("rect[class^=part-]").count() >= 4
    await expect(
        page.get_by_text("A compaction would remove nothing now: there are no messages before the")
    ).to_be_visible()
    assert await window.accessibility_faults() == []


async def test_compaction_is_previewed_and_made(system: System, window: Window) -> None:
    agent = await system.make_agent()
    system.model.respond(lambda _: say("Hello. " * 30))
    for number in range(5):
        await system.send(agent, f"Message {number}. " + "word " * 100)
    page = window.page
    await page.goto(f"/console/agents/{agent.id}/context")
    await expect(page.get_by_text("would be summarised")).to_be_visible()
    await page.get_by_text("Which messages").click()
    leaving = page.get_by_role("row").filter(has_text="is summarised")
    staying = page.get_by_role("row").filter(has_text="stays")
    await expect(leaving.first).to_contain_text("Message 0.")
    await expect(staying.last).to_contain_text("Hello.")
    count = await leaving.count()
    assert count + await staying.count() == 10
    assert await window.accessibility_faults() == []
    system.model.respond(lambda _: say("They said hello."))
    await page.get_by_role("button", name="Compact now").click()
    await expect(page.get_by_text("Older messages were summarised")).to_be_visible()
    await page.reload()
    await page.get_by_text("Which messages").click()
    await expect(page.get_by_role("row").filter(has_text="Message 0.")).to_have_count(0)
    await expect(page.get_by_role("row").filter(has_text="They said hello.")).to_have_count(1)
    assert await page.locator("#preview tbody tr").count() == 10 - count + 1


async def test_pages_of_memory_fit_a_phone(system: System, browser: Browser) -> None:
    agent = await system.make_agent(
        blocks=[block_pb.NewBlock(label="notes", value="long " * 400 + "x" * 400)]
    )
    folder = await make_folder(system, f"phone {agent.id[-8:]} {'n' * 60}")
    await upload(system, folder.id, f"{'f' * 80}.md", b"Text.")
    block = await system.block(agent, "notes")
    async with open_window(browser, system.http_url, phone=True) as window:
        page = window.page
        await page.goto("/console/")
        await page.get_by_label("API key").fill(system.key)
        await page.get_by_role("button", name="Sign in").click()
        for path in (
            *(f"agents/{agent.id}/{tab}" for tab in ("memory", "archival", "files", "context")),
            f"blocks/{block.id}",
            f"blocks/{block.id}/blame",
        ):
            await page.goto(f"/console/{path}")
            assert await page.evaluate("document.documentElement.scrollWidth") <= 390, path
        assert window.faults == []
