"""Writes the pictures of the web console in docs/images.

    make screenshots

It starts Strata on a new data folder with a scripted model, gives an agent a short history, and
opens the console in Chromium.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.async_api import Page, expect

from browser import open_browser, open_window
from doubles.model_server import ModelServer
from doubles.script import Call, Reply, say
from live import LiveSystem
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.archival.v1.passage_service_pb2 import InsertPassageRequest, NewPassage
from strata.api.common.v1 import message_pb2
from strata.api.common.v1.tool_pb2 import TOOL_RULE_TYPE_REQUIRES_APPROVAL, ToolRule
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.api.core_memory.v1 import file_service_pb2 as file_pb
from strata.cli.console_link import new_link
from strata.standalone.data_folder import DataFolder
from whole_system import System

IMAGES = Path(__file__).parents[3] / "docs" / "images"
COLOURS = 128

# Whether it is dark, whether it is a phone, and the end of the name of the picture.
_LOOKS = ((False, False, ""), (True, False, "-dark"), (False, True, "-phone"))
_PASSAGES = (
    "The lemon tree was bought at the market of Campo de Ourique, for 35 euros.",
    "Mara's sister Inês visits every August, and waters the plants too much.",
    "Citrus needs iron: yellow leaves with green veins mean chlorosis.",
)


async def make() -> None:
    """Makes all pictures."""
    folder = _new_folder()
    try:
        async with ModelServer() as model:
            live = LiveSystem(folder / "data", model, environment={"STRATA_HTTP_PORT": "0"})
            system = await live.start_system()
            try:
                agent = await seed(system)
                await take(live, agent)
            finally:
                await system.channel.close()
                await live.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _new_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="strata-screenshots-"))
    # The database runs as another user if this one is root.
    folder.chmod(0o711)
    return folder


async def seed(system: System) -> agent_pb.Agent:
    """Creates agents, one of them with a conversation."""
    await system.make_agent(name="travel planner", description="Trains rather than planes.")
    await system.make_agent(name="librarian", description="Knows the manuals.", tags=["work"])
    agent = await system.make_agent(
        name="gardener",
        description="Knows the balcony, and when to water.",
        tags=["home"],
        blocks=[
            block_pb.NewBlock(
                label="persona", value="I am a patient gardener.\nI answer in a few sentences."
            ),
            block_pb.NewBlock(label="human", value="Name: Mara.\nLives in Lisbon."),
        ],
        tools=["run_code"],
        tool_rules=[ToolRule(type=TOOL_RULE_TYPE_REQUIRES_APPROVAL, tool_name="run_code")],
    )
    kept = {"label": "human", "new_str": "Has a lemon tree on the balcony, since May 2026."}
    system.model.script(
        Reply(
            text="How nice. I keep that in mind.",
            reasoning="A lemon tree: that belongs into the block human.",
            calls=[Call("memory_insert", kept)],
        ),
        say(
            "Lemons like sun and dry feet: water it when the top two centimetres of the soil are"
            " dry, and give it iron in spring."
        ),
        Reply(
            reasoning="0.3 litres on each of seven days. I had better compute it.",
            calls=[Call("run_code", {"code": "print(round(0.3 * 7, 1))", "language": "python"})],
        ),
    )
    await system.send(agent, "I have had a lemon tree on my balcony since May!")
    await system.send(agent, "How much water is that in a week, at 0.3 litres a day?")
    for text in _PASSAGES:
        await system.passages.InsertPassage(
            InsertPassageRequest(agent_id=agent.id, passage=NewPassage(text=text, tags=["garden"]))
        )
    await system.blocks.EditBlock(
        block_pb.EditBlockRequest(
            agent_id=agent.id,
            label="human",
            append=block_pb.AppendEdit(content="Reads the blog citrus.example."),
            origin=block_pb.EditOrigin(
                kind=block_pb.EDITOR_KIND_AGENT,
                tool_name="core_memory_append",
                taint=[message_pb2.PROVENANCE_WEB],
            ),
        )
    )
    made = await system.files.CreateFolder(file_pb.CreateFolderRequest(name="manuals"))
    await system.files.AttachFolder(
        file_pb.AttachFolderRequest(agent_id=agent.id, folder_id=made.folder.id)
    )
    await system.files.UploadFile(_manual(made.folder.id))
    return agent


async def _manual(folder_id: str) -> AsyncIterator[file_pb.UploadFileRequest]:
    yield file_pb.UploadFileRequest(
        header=file_pb.UploadFileHeader(folder_id=folder_id, name="citrus.md")
    )
    yield file_pb.UploadFileRequest(chunk=b"# Citrus\n\n" + b"Water it when it is dry.\n" * 40)


async def take(live: LiveSystem, agent: agent_pb.Agent) -> None:
    """Takes the pictures."""
    data = DataFolder(live.data)
    runtime = data.running()
    assert runtime is not None
    async with open_browser() as browser:
        for dark, phone, suffix in (
            (False, False, ""),
            (True, False, "-dark"),
            (False, True, "-phone"),
        ):
            async with open_window(browser, runtime.http_url, dark=dark, phone=phone) as window:
                page = window.page
                await page.goto(new_link(data, runtime.http_url))
                await page.goto(f"/console/agents/{agent.id}/chat")
                await expect(page.get_by_text("Waiting for your approval")).to_be_visible()
                await save(page, f"console-chat{suffix}")
                if suffix:
                    continue
                await page.goto("/console/agents")
                await save(page, "console-agents")
                await page.goto(f"/console/agents/{agent.id}/memory")
                await save(page, "console-memory")
                await page.get_by_role("link", name="human").click()
                await page.get_by_text("Revision 3").click()
                await expect(page.locator(".diff .add")).to_be_visible()
                await page.get_by_role(
                    "button", name="Delete the block"
                ).scroll_into_view_if_needed()
                await save(page, "console-block")
                await page.goto(f"/console/agents/{agent.id}/archival?q=lemon")
                await page.locator(".score summary").first.click()
                await save(page, "console-archival")
                await page.goto(f"/console/agents/{agent.id}/context")
                await save(page, "console-context")


async def save(page: Page, name: str) -> None:
    """Writes a screenshot of the page as a small PNG."""
    await page.evaluate("document.activeElement.blur()")
    png = await page.screenshot()
    picture = Image.open(BytesIO(png)).convert("RGB").quantize(COLOURS)
    IMAGES.mkdir(exist_ok=True)
    picture.save(IMAGES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    asyncio.run(make())
