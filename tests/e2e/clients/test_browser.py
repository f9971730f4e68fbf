"""The client for browsers, in Chromium."""

from __future__ import annotations

import json
import shutil
from typing import Any
from urllib.parse import urlencode

import pytest

from doubles.script import say
from example_programs import CLIENTS, REPOSITORY, output_of
from whole_system import System

_NODE = shutil.which("node")
_CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
_PROGRAM = CLIENTS / "typescript" / "dist-examples" / "browser.bundle.js"

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.child_process,
    pytest.mark.skipif(_NODE is None or _CHROMIUM is None, reason="needs Node and Chromium"),
    pytest.mark.skipif(not _PROGRAM.exists(), reason="needs `make clients`"),
]


async def shown(port: int, **values: str) -> Any:
    """Returns the text of a page whose address contains these values."""
    assert _NODE is not None
    assert _CHROMIUM is not None
    script = REPOSITORY / "tests" / "node" / "browser_client.mjs"
    arguments = (str(port), str(_PROGRAM), _CHROMIUM, urlencode(values))
    return json.loads(await output_of({}, _NODE, str(script), *arguments))


async def test_a_page_streams_the_reply_of_an_agent(system: System, page_port: int) -> None:
    system.model.script(say("Hello from the agent, to a page."))
    agent = await system.make_agent()
    page = await shown(
        page_port, baseUrl=system.http_url, apiKey=system.key, agentId=agent.id, text="Hello!"
    )
    text = f"{agent.name}: Hello from the agent, to a page."
    assert page == {"text": text, "problems": [], "done": True}


async def test_a_page_shows_the_error_of_a_refused_call(system: System, page_port: int) -> None:
    agent = await system.make_agent()
    page = await shown(
        page_port, baseUrl=system.http_url, apiKey="sk-wrong", agentId=agent.id, text="Hello!"
    )
    assert page["done"]
    assert "API key" in page["text"]
