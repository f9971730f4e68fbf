"""Chromium from the packages of the system, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Error,
    Page,
    Playwright,
    Route,
    async_playwright,
    expect,
)

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
"""Path of the browser; None if the system has none."""

_FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Only loopback names are resolved.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
_AXE = Path(__file__).parents[1] / "node/node_modules/axe-core/axe.min.js"
_HTML_CHARS = 200
_TIMEOUT_MS = 20_000
_PHONE = {"width": 390, "height": 800}
_DESKTOP = {"width": 1280, "height": 900}

expect.set_options(timeout=_TIMEOUT_MS)


class Window:
    """A page in a new browser profile; records its errors.

    Attributes:
        page: The page.
        faults: Errors in its console, uncaught errors, and requests to other machines.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.faults: list[str] = []
        page.on("console", self._note_console)
        page.on("pageerror", lambda error: self.faults.append(f"uncaught: {error}"))

    async def watch_requests(self, context: BrowserContext) -> None:
        """Refuses requests to other machines, and records them."""
        await context.route("**/*", self._check)

    async def accessibility_faults(self) -> list[str]:
        """Returns the serious and critical findings of axe-core for the current page.

        Without Node, which installs axe-core, there are no findings.
        """
        if not _AXE.exists() and shutil.which("node") is None:
            return []
        assert _AXE.exists(), "run `make test` once: it fetches axe-core"
        await self.page.evaluate(_AXE.read_text("utf-8"))
        violations = await self.page.evaluate("axe.run().then(result => result.violations)")
        return [
            f"{violation['id']}: {node['html'][:_HTML_CHARS]}"
            for violation in violations
            if violation["impact"] in ("serious", "critical")
            for node in violation["nodes"]
        ]

    async def _check(self, route: Route) -> None:
        url = urlsplit(route.request.url)
        if url.hostname == "127.0.0.1" or url.scheme in ("data", "blob"):
            await route.continue_()
            return
        self.faults.append(f"request to {route.request.url}")
        await route.abort()

    def _note_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"console: {message.text}")


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    """Starts Chromium; without its sandbox if the user is root or the system does not allow it."""
    async with async_playwright() as playwright:
        browser = await _launched(playwright)
        try:
            yield browser
        finally:
            await browser.close()


async def _launched(playwright: Playwright) -> Browser:
    assert CHROMIUM is not None
    launch: dict[str, Any] = {"executable_path": CHROMIUM, "args": list(_FLAGS)}
    if os.geteuid() != 0:
        try:
            return await playwright.chromium.launch(chromium_sandbox=True, **launch)
        except Error:
            # For containers without user namespaces.
            pass
    return await playwright.chromium.launch(chromium_sandbox=False, **launch)


@asynccontextmanager
async def open_window(
    browser: Browser, base_url: str, *, dark: bool = False, phone: bool = False
) -> AsyncIterator[Window]:
    """Opens a page in a new profile.

    Args:
        browser: The browser.
        base_url: Base of relative URLs.
        dark: Whether the user prefers dark colours.
        phone: Whether the page is as wide as a phone.
    """
    context = await browser.new_context(
        base_url=base_url,
        color_scheme="dark" if dark else "light",
        viewport=_PHONE if phone else _DESKTOP,  # type: ignore[arg-type]
        locale="en-GB",
        timezone_id="UTC",
        reduced_motion="reduce",
    )
    context.set_default_timeout(_TIMEOUT_MS)
    try:
        window = Window(await context.new_page())
        await window.watch_requests(context)
        yield window
    finally:
        await context.close()
