"""The chat in Chromium."""

from __future__ import annotations

import asyncio
import base64
import re

import pytest
from playwright.async_api import Browser, FilePayload, Page, Request, Route, expect

from browser import Window, open_window
from console_client import HOSTILE
from doubles.script import Call, ModelCall, Reply, call, say
from image_samples import png
from polling import eventually
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1.tool_pb2 import TOOL_RULE_TYPE_REQUIRES_APPROVAL, ToolRule
from strata.api.core_memory.v1.block_service_pb2 import NewBlock
from strata.protocol.images import MAX_IMAGE_BYTES
from whole_system import System

SHOWN = """(shown) => {
    Object.defineProperty(document, "hidden", { get: () => !shown, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""
"""Shows the page, or another one in front of it."""

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.child_process]


async def open_chat(page: Page, agent: agent_pb.Agent) -> None:
    await page.goto(f"/console/agents/{agent.id}/chat")
    await expect(page.get_by_role("heading", name=agent.name)).to_be_visible()


async def test_reply_streams_with_reasoning_calls_and_edits(system: System, window: Window) -> None:
    agent = await system.make_agent(blocks=[NewBlock(label="human", value="Likes tea.")])
    edit = {"label": "human", "old_str": "Likes tea.", "new_str": "Likes coffee."}
    held = asyncio.Event()

    def answer(model_call: ModelCall) -> Reply:
        if model_call.answered:
            return say("Noted: you like coffee now, at last.", held=held, pause=0.01)
        return Reply(reasoning="A change of taste.", calls=[Call("memory_replace", edit)])

    system.model.respond(answer)
    page = window.page
    await open_chat(page, agent)
    await page.keyboard.type("I like coffee.")
    await page.keyboard.press("Enter")
    log = page.get_by_role("log")
    await expect(log.get_by_text("I like coffee.")).to_be_visible()
    # The reply is held by the model: what is seen now was streamed.
    await expect(log.locator(".diff .del")).to_have_text("-Likes tea.")
    await expect(log.locator(".diff .add")).to_have_text("+Likes coffee.")
    await expect(log.locator(".run")).to_have_attribute("aria-busy", "true")
    await expect(log.get_by_role("button", name="Cancel")).to_be_visible()
    assert await window.accessibility_faults() == []
    # Another page follows the same run from its beginning.
    await page.reload()
    await expect(log.locator(".diff .add")).to_have_text("+Likes coffee.")
    await expect(log.get_by_text("I like coffee.", exact=True)).to_have_count(1)
    await expect(log.locator(".run")).to_have_attribute("aria-busy", "true")
    held.set()
    await expect(log.get_by_text("Noted: you like coffee now, at last.")).to_be_visible()
    await expect(log.locator(".run")).to_have_attribute("aria-busy", "false")
    await expect(log.get_by_role("button", name="Cancel")).to_have_count(0)
    await log.locator(".reasoning summary").first.click()
    await expect(log.get_by_text("A change of taste.")).to_be_visible()
    await log.locator(".call summary").click()
    await expect(log.get_by_text('"old_str": "Likes tea."')).to_be_visible()
    assert await window.accessibility_faults() == []
    await page.reload()
    await expect(log.locator(".diff .add")).to_have_text("+Likes coffee.")


# Pastes a file into the message as a person does.
_PASTE = """(area, [name, data]) => {
  const transfer = new DataTransfer();
  const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
  transfer.items.add(new File([bytes], name, { type: "image/png" }));
  area.dispatchEvent(new ClipboardEvent("paste", { clipboardData: transfer, cancelable: true }));
}"""


async def test_images_are_chosen_pasted_and_sent(system: System, window: Window) -> None:
    agent = await system.make_agent()
    held = asyncio.Event()
    system.model.script(say("Two pictures.", held=held))
    page = window.page
    await open_chat(page, agent)
    message = page.get_by_label("Message", exact=True)
    images = page.get_by_label("Images", exact=True)
    attached = page.get_by_role("list", name="Images to send").get_by_role("listitem")
    tall, notes, big = (
        FilePayload(name=name, mimeType=media_type, buffer=data)
        for name, media_type, data in (
            ("tall.png", "image/png", png(30, 120, 90)),
            ("notes.txt", "text/plain", b"Notes."),
            ("big.png", "image/png", bytes(MAX_IMAGE_BYTES + 1)),
        )
    )
    await images.set_input_files([tall, notes])
    await expect(attached).to_have_count(1)
    await expect(
        page.get_by_role("alert").filter(has_text="notes.txt is not a PNG")
    ).to_be_visible()
    await images.set_input_files([big])
    await expect(
        page.get_by_role("alert").filter(has_text="big.png has 3,932,161 bytes")
    ).to_be_visible()
    pasted = base64.b64encode(png(8, 8, 200)).decode()
    for name in ("pasted.png", "another.png"):
        await message.evaluate(_PASTE, [name, pasted])
    await expect(attached).to_have_count(3)
    await expect(page.get_by_role("alert")).to_have_count(0)
    await expect(page.locator("canvas[data-drawn]")).to_have_count(3)
    canvas = page.get_by_role("img", name="tall.png")
    pixel = await canvas.evaluate(
        "c => [c.width, c.height, c.getContext('2d').getImageData(2, 2, 1, 1).data[0]]"
    )
    assert pixel == [16, 64, 90]
    assert await window.accessibility_faults() == []
    await page.get_by_role("button", name="Remove another.png").click()
    await expect(attached).to_have_count(2)
    await message.fill("Look.")
    await message.press("Enter")
    await expect(attached).to_have_count(0)
    # The reply is held by the model: the images are stored, and shown while the agent works.
    sent_images = page.get_by_role("article", name="You").get_by_role("img")
    await expect(sent_images).to_have_count(2)
    held.set()
    await expect(page.get_by_text("Two pictures.")).to_be_visible()
    await page.reload()
    await expect(sent_images).to_have_count(2)
    # An image has a size once its bytes have arrived.
    sizes = await sent_images.evaluate_all(
        "async images => { await Promise.all(images.map(i => i.decode()));"
        " return images.map(i => [i.naturalWidth, i.naturalHeight]); }"
    )
    assert sizes == [[30, 120], [8, 8]]


async def test_run_is_cancelled(system: System, window: Window) -> None:
    agent = await system.make_agent()
    system.model.respond(lambda _: say("A long story. " * 400, pause=0.05))
    page = window.page
    await open_chat(page, agent)
    await page.get_by_label("Message", exact=True).fill("Tell me a story.")
    await page.get_by_role("button", name="Send").click()
    await expect(page.get_by_role("log").get_by_text("A long story.")).to_be_visible()
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.get_by_text("Cancelled.")).to_be_visible()


async def test_any_number_of_runs_may_wait_in_a_conversation(
    system: System, window: Window
) -> None:
    # Browsers open six connections to a server.
    gate = asyncio.Event()
    system.model.respond(lambda _: Reply(text="Here it is.", held=gate, held_after=0))
    agent = await system.make_agent()
    page = window.page
    await open_chat(page, agent)
    runs = page.locator("section.run")
    for number in range(8):
        await page.get_by_label("Message", exact=True).fill(f"Message {number}")
        await page.keyboard.press("Enter")
        await expect(runs).to_have_count(number + 1)
    await runs.last.get_by_role("button", name="Cancel").click()
    await expect(runs.last).to_contain_text("Cancelled.")
    await page.reload()
    await expect(runs).to_have_count(7)
    gate.set()
    for number in range(7):
        await expect(runs.nth(number)).to_contain_text("Here it is.")
        await expect(runs.nth(number)).to_have_attribute("aria-busy", "false")
    assert window.faults == []


@pytest.mark.parametrize("accepted", [True, False])
async def test_text_that_is_typed_while_a_message_is_sent_is_kept(
    system: System, window: Window, accepted: bool
) -> None:
    system.model.respond(lambda _: say("Here it is."))
    page, typed = window.page, asyncio.Event()

    async def send_later(route: Route) -> None:
        await typed.wait()
        await (route.continue_() if accepted else route.abort())

    await page.route("**/messages", send_later)
    await open_chat(page, await system.make_agent())
    message = page.get_by_label("Message", exact=True)
    await message.fill("The first.")
    async with page.expect_request("**/messages"):
        await page.keyboard.press("Enter")
    await page.keyboard.type("The second.")
    typed.set()
    if accepted:
        await expect(page.locator("section.run")).to_contain_text("Here it is.")
        await expect(message).to_have_value("The second.")
    else:
        await expect(message).to_have_value("The first.\nThe second.")
        window.faults.clear()


async def test_a_page_that_is_not_visible_has_no_stream(system: System, window: Window) -> None:
    gate = asyncio.Event()
    system.model.script(Reply(text="Here it is.", held=gate, held_after=0))
    page = window.page
    begun: list[str] = []
    ended: list[str] = []

    def note_begin(request: Request) -> None:
        if "/live/" in request.url:
            begun.append(request.url)

    page.on("request", note_begin)
    page.on("requestfailed", lambda request: ended.append(request.url))
    await open_chat(page, await system.make_agent())
    await page.get_by_label("Message", exact=True).fill("Hello.")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("is thinking")).to_be_visible()
    await page.evaluate(SHOWN, False)
    await eventually(lambda: ended == begun)
    gate.set()
    await page.evaluate(SHOWN, True)
    run = page.locator("section.run")
    await expect(run).to_contain_text("Here it is.")
    await expect(run).to_have_attribute("aria-busy", "false")
    assert begun == [ended[0], ended[0]]


async def test_approval_is_answered_in_place(system: System, window: Window) -> None:
    agent = await system.make_agent(
        tool_rules=[
            ToolRule(type=TOOL_RULE_TYPE_REQUIRES_APPROVAL, tool_name="conversation_search")
        ]
    )
    system.model.script(call("conversation_search", {"query": "tea"}), say("You like tea."))
    page = window.page
    await open_chat(page, agent)
    await page.get_by_label("Message", exact=True).fill("Do I like tea?")
    await page.get_by_role("button", name="Send").click()
    await expect(page.get_by_text("Waiting for your approval")).to_be_visible()
    assert await window.accessibility_faults() == []
    await page.get_by_role("button", name="Approve").click()
    await expect(page.get_by_text("You like tea.")).to_be_visible()
    await expect(page.get_by_text("Waiting for your approval")).to_have_count(0)


async def test_conversation_is_forked_and_another_started(system: System, window: Window) -> None:
    agent = await system.make_agent()
    system.model.script(say("First reply."), say("Second reply."), say("Third reply."))
    await system.send(agent, "One")
    await system.send(agent, "Two")
    page = window.page
    await open_chat(page, agent)
    first = page.get_by_role("article").filter(has_text="First reply.")
    await first.get_by_role("button", name="Fork here").click()
    await expect(page).to_have_url(re.compile("conversation=conversation-"))
    await expect(page.get_by_text("First reply.")).to_be_visible()
    await expect(page.get_by_text("Second reply.")).to_have_count(0)
    await page.get_by_label("Message", exact=True).fill("Three")
    await page.get_by_role("button", name="Send").click()
    await expect(page.get_by_text("Third reply.")).to_be_visible()

    await page.locator(".conversations > summary").click()
    await page.get_by_label("Title of a new conversation").fill("Elsewhere")
    await page.get_by_role("button", name="New conversation").click()
    await expect(page.locator(".conversations > summary")).to_contain_text("Elsewhere")


async def test_hostile_texts_execute_no_script(system: System, window: Window) -> None:
    agent = await system.make_agent(
        description=HOSTILE, blocks=[NewBlock(label="human", value=HOSTILE)]
    )
    edit = {"label": "human", "old_str": HOSTILE, "new_str": "<svg onload=alert(1)>"}
    system.model.script(
        Reply(
            text=HOSTILE,
            reasoning=HOSTILE,
            calls=[Call("memory_replace", edit, id="\"'><script>alert(2)</script>")],
        ),
        say("<a href='javascript:alert(1)'>" + HOSTILE),
    )
    page = window.page
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    await open_chat(page, agent)
    await page.get_by_label("Message", exact=True).fill(HOSTILE)
    await page.get_by_role("button", name="Send").click()
    await expect(page.locator(".run")).to_have_attribute("aria-busy", "false")
    await expect(page.get_by_role("log").get_by_text("<a href='javascript:")).to_be_visible()
    for path in ("chat", "memory", "settings"):
        await page.goto(f"/console/agents/{agent.id}/{path}")
        foreign = await page.locator("main script, main [onerror], main [onload]").count()
        assert foreign == 0
    assert dialogs == []


async def test_phone_shows_the_chat_without_scrolling_sideways(
    system: System, browser: Browser
) -> None:
    agent = await system.make_agent()
    system.model.script(
        Reply(calls=[Call("conversation_search", {"query": "x" * 400})]), say("y" * 400)
    )
    await system.send(agent, "z" * 400)
    async with open_window(browser, system.http_url, phone=True, dark=True) as window:
        page = window.page
        await page.goto(f"/console/agents/{agent.id}/chat")
        await page.get_by_label("API key").fill(system.key)
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_text("y" * 400)).to_be_visible()
        await page.wait_for_load_state()
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390
        assert await window.accessibility_faults() == []
        assert window.faults == []
