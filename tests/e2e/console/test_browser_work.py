"""Runs, schedules, tools, keys and usage in Chromium."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from browser import Window, open_window
from console_client import HOSTILE
from console_records import furnish, make_tool
from doubles.script import Fault, Reply, call, say
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.gateway.v1 import admin_service_pb2 as admin_pb
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.gateway.console.sign_in_links import sign_in_link
from whole_system import System

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.child_process]

SOURCE = '''
def double(number: int, note: str = "") -> int:
    """Doubles a number.

    Args:
        number: What <b>is doubled</b>.
        note: Not used.
    """
    return number * 2
'''


@pytest_asyncio.fixture(loop_scope="session")
async def agent(system: System) -> AsyncIterator[agent_pb.Agent]:
    """An agent with a run that called a tool, and one that failed with a hostile message."""
    made = await system.make_agent(name="<i>worker<br>")
    system.model.script(
        call("archival_memory_search", {"query": HOSTILE}),
        say(HOSTILE),
        Fault(400, HOSTILE, "invalid_request_error"),
    )
    await system.send(made, HOSTILE)
    await system.send(made, "Again.")
    yield made
    await system.agents.DeleteAgent(agent_pb.DeleteAgentRequest(agent_id=made.id))


async def test_runs_are_filtered_opened_and_replayed(window: Window, agent: agent_pb.Agent) -> None:
    page = window.page
    await page.get_by_role("link", name="Runs", exact=True).click()
    await expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    await page.goto(f"/console/agents/{agent.id}/runs")
    rows = page.locator("#runs tbody tr")
    await expect(rows).to_have_count(2)
    await page.get_by_role("link", name="Completed").click()
    await expect(rows).to_have_count(1)
    await rows.get_by_role("link").first.click()
    await expect(page.get_by_role("heading", name="Timeline")).to_be_visible()
    bars = page.locator(".timeline svg rect")
    assert await bars.count() == await page.locator(".timeline tbody tr").count() > 3
    colors = await bars.evaluate_all("bars => bars.map(bar => getComputedStyle(bar).fill)")
    assert "rgb(0, 0, 0)" not in colors, "each kind of span has a colour"
    await page.get_by_role("link", name="Stored events").click()
    await expect(page.get_by_text("Run ended")).to_be_visible()
    await page.get_by_role("button", name="Replay").click()
    await expect(page.get_by_role("button", name="Show all")).to_be_visible()
    await expect(page.get_by_role("button", name="Replay")).to_be_visible()
    await expect(page.locator("#events > li.later")).to_have_count(0)


async def test_an_active_run_is_followed_to_its_end(system: System, window: Window) -> None:
    worker = await system.make_agent()
    release = asyncio.Event()
    system.model.script(Reply(text="A long answer." * 20, held=release))
    stream = system.begin(worker, "Think.")
    await asyncio.wait_for(system.model.received.wait(), 20)
    request = run_pb.ListRunsRequest(agent_id=worker.id)
    run_id = (await system.runs.ListRuns(request)).runs[0].id
    page = window.page
    await page.goto(f"/console/runs/{run_id}")
    await expect(page.get_by_role("status")).to_contain_text("running")
    release.set()
    await stream.rest()
    await expect(page.get_by_role("status")).to_contain_text("completed")


async def test_tool_is_tried_by_keyboard(system: System, window: Window) -> None:
    stored = await make_tool(system, SOURCE)
    page = window.page
    await page.goto(f"/console/tools/{stored.id}")
    await page.get_by_label("number").focus()
    await page.keyboard.type("21")
    for _ in range(3):
        await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.locator("#result")).to_contain_text("42")
    assert await window.accessibility_faults() == []
    await page.get_by_label("number").fill("many")
    await page.get_by_role("button", name="Run").click()
    await expect(page.get_by_role("alert").filter(has_text="number")).to_be_visible()
    assert all("400" in fault for fault in window.faults), window.faults
    window.faults.clear()


async def test_tool_is_edited_and_deleted(system: System, window: Window) -> None:
    stored = await make_tool(system, SOURCE.replace("double", "twice"))
    page = window.page
    await page.goto(f"/console/tools/{stored.id}")
    await page.get_by_role("link", name="Edit").click()
    hosts = page.get_by_label("Hosts that the tool may connect to")
    await hosts.fill("http://shop.example")
    await page.get_by_label("Description").fill("Doubles what it is given.")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("alert").filter(has_text="Nothing was saved")).to_be_visible()
    await expect(hosts).to_have_attribute("aria-invalid", "true")
    await expect(hosts).to_have_value("http://shop.example")
    assert await window.accessibility_faults() == []
    assert all("400" in fault for fault in window.faults), window.faults
    window.faults.clear()
    await hosts.fill("")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("heading", name="Definition")).to_be_visible()
    await expect(page.get_by_text("Doubles what it is given.")).to_be_visible()
    page.on("dialog", lambda dialog: dialog.accept())
    await page.get_by_role("button", name="Delete").click()
    await expect(page.get_by_role("heading", name="Tools")).to_be_visible()
    await expect(page.get_by_role("link", name=stored.name)).to_have_count(0)


async def test_key_is_made_and_revoked(system: System, window: Window) -> None:
    page = window.page
    await page.get_by_role("link", name="Keys", exact=True).click()
    await page.get_by_label("Name", exact=True).fill("of the browser")
    await page.get_by_label("write", exact=True).uncheck()
    await page.get_by_role("button", name="Create").click()
    secret = await page.get_by_label("Key", exact=True).input_value()
    assert await window.accessibility_faults() == []
    other = system.client(secret)
    try:
        identity = await other.admin.WhoAmI(admin_pb.WhoAmIRequest())
    finally:
        await other.channel.close()
    assert sorted(identity.api_key.scopes) == ["read", "run"]
    await page.get_by_role("link", name="Hide the key and list all keys").click()
    await expect(page.get_by_text(secret)).to_have_count(0)
    page.on("dialog", lambda dialog: dialog.accept())
    await page.get_by_role("button", name="Revoke of the browser").click()
    await expect(page.get_by_text("is revoked")).to_be_visible()


async def test_usage_is_drawn(system: System, browser: Browser, agent: agent_pb.Agent) -> None:
    link = sign_in_link(system.http_url, system.gateway_settings.pepper(), system.key)
    async with open_window(browser, system.http_url, dark=True) as window:
        page = window.page
        await page.goto(link)
        await page.get_by_role("link", name="Usage", exact=True).click()
        await page.get_by_label("Only this agent").fill(agent.name)
        await page.get_by_role("button", name="Show").click()
        await expect(page).to_have_url(re.compile("agent=%3Ci%3E"))
        charts = page.locator(".chart canvas")
        await expect(charts).to_have_count(2)
        drawn = "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height)"
        for index in range(2):
            pixels = f"canvas => ({drawn})(canvas).data.some(value => value)"
            assert await charts.nth(index).evaluate(pixels)
        assert await window.accessibility_faults() == []
        assert window.faults == []


async def test_pages_of_work_are_accessible_and_fit_a_phone(
    system: System, browser: Browser
) -> None:
    ids = await furnish(system, "wide " + "x" * 80)
    tool_id = (await make_tool(system, SOURCE)).id
    link = sign_in_link(system.http_url, system.gateway_settings.pepper(), system.key)
    async with open_window(browser, system.http_url, phone=True) as window:
        page = window.page
        await page.goto(link)
        for path in (
            f"/runs/{ids['run_id']}",
            f"/runs/{ids['run_id']}/events",
            "/schedules",
            "/memory-agents",
            f"/schedules/{ids['schedule_id']}/edit",
            f"/groups/{ids['group_id']}/edit",
            f"/tools/{tool_id}",
            f"/mcp/{ids['mcp_server_id']}",
            f"/mcp/{ids['mcp_server_id']}/edit",
            "/keys",
            "/usage",
        ):
            await page.goto(f"/console{path}")
            width = await page.evaluate("document.documentElement.scrollWidth")
            assert width <= 390, path
            assert await window.accessibility_faults() == [], path
        assert window.faults == []
