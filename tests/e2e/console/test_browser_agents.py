"""Sign-in and agents in Chromium."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Browser, expect

from browser import Window, open_window
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from whole_system import System

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.child_process]


async def test_a_person_signs_in_with_a_key_and_signs_out(system: System, browser: Browser) -> None:
    async with open_window(browser, system.http_url, dark=True) as window:
        page = window.page
        await page.goto("/console/agents?name=nobody")
        assert await window.accessibility_faults() == []
        # Only the keyboard is used; the field has the focus.
        await page.keyboard.type(system.key)
        await page.keyboard.press("Enter")
        await expect(page).to_have_url(re.compile(r"/console/agents\?name=nobody$"))
        await expect(page.get_by_text("No agent matches.")).to_be_visible()
        cookie = await page.evaluate("document.cookie")
        assert cookie == "", "scripts cannot read the cookie"
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_label("API key")).to_be_visible()
        assert window.faults == []


async def test_agent_is_created_found_cloned_and_deleted(system: System, window: Window) -> None:
    page = window.page
    await page.get_by_role("link", name="New agent").click()
    assert await window.accessibility_faults() == []
    await page.get_by_label("Name", exact=True).fill("gardener")
    await page.get_by_label("Description").fill("Knows plants.")
    await page.get_by_label("persona").fill("I know <b>plants</b>.")
    await page.get_by_label("run_code", exact=True).check()
    await page.get_by_role("button", name="Create").click()
    await expect(page.get_by_role("heading", name="gardener")).to_be_visible()
    agent = (await system.agents.GetAgent(agent_pb.GetAgentRequest(name="gardener"))).agent
    assert "run_code" in agent.tools

    await page.get_by_role("link", name="Settings").click()
    assert await window.accessibility_faults() == []
    await page.get_by_label("Name of the clone").fill("gardener two")
    await page.get_by_role("button", name="Clone").click()
    await expect(page.get_by_role("heading", name="gardener two")).to_be_visible()
    page.on("dialog", lambda dialog: dialog.accept())
    await page.get_by_role("button", name="Delete the agent").click()
    await expect(page.get_by_role("heading", name="Agents")).to_be_visible()
    # The list is filtered during typing once the scripts have run.
    await page.wait_for_load_state()

    await page.get_by_label("Name contains").fill("gardener")
    rows = page.locator("#agents tbody tr")
    await expect(rows).to_have_count(1)
    assert await window.accessibility_faults() == []


async def test_refusal_is_shown_in_place(system: System, window: Window) -> None:
    await system.make_agent(name="taken")
    page = window.page
    await page.goto("/console/agents/new")
    await page.get_by_label("Name", exact=True).fill("taken")
    await page.get_by_label("persona").fill("kept while the name is wrong")
    await page.get_by_role("button", name="Create").click()
    await expect(page.get_by_role("alert").filter(has_text="NAME_TAKEN")).to_be_visible()
    await expect(page.get_by_label("persona")).to_have_value("kept while the name is wrong")
    # Chromium itself logs the status 409, and htmx the response.
    assert all("409" in fault for fault in window.faults), window.faults
    window.faults.clear()


async def test_pages_fit_a_phone(system: System, browser: Browser) -> None:
    async with open_window(browser, system.http_url, phone=True) as window:
        page = window.page
        await page.goto("/console/")
        await page.get_by_label("API key").fill(system.key)
        await page.get_by_role("button", name="Sign in").click()
        for path in ("/console/agents", "/console/agents/new"):
            await page.goto(path)
            width = await page.evaluate("document.documentElement.scrollWidth")
            assert width <= 390, path
        assert window.faults == []
