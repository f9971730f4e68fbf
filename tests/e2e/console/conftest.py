"""A whole running Strata with the web console, and people who are signed in to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from browser import CHROMIUM, Window, open_browser, open_window
from console_client import ConsoleClient
from strata.api.gateway.v1 import admin_service_pb2 as admin_pb
from strata.gateway.console.sign_in_links import sign_in_link
from strata.shared.scopes import Scope
from strata.standalone.ports import pick_port
from whole_system import Shape, System, open_system


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def running_system(databases: Any, vectors: Any) -> AsyncIterator[System]:
    async with open_system(databases, vectors, Shape.IN_PROCESS, http_port=pick_port()) as system:
        yield system


@pytest_asyncio.fixture(loop_scope="session")
async def nobody(system: System) -> AsyncIterator[ConsoleClient]:
    """A console client that is not signed in."""
    async with ConsoleClient(system.http_url) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="session")
async def ann(system: System) -> AsyncIterator[ConsoleClient]:
    """A console client signed in with the key of the system, which has all scopes."""
    async with ConsoleClient(system.http_url) as client:
        response = await client.sign_in(system.key)
        assert response.status_code == 303, response.text
        yield client


@pytest_asyncio.fixture(loop_scope="session")
async def reader(system: System) -> AsyncIterator[ConsoleClient]:
    """A console client signed in with a key that has only the read scope."""
    made = await system.admin.CreateApiKey(
        admin_pb.CreateApiKeyRequest(
            project_id=system.project_id, name="reader", scopes=[Scope.READ]
        )
    )
    async with ConsoleClient(system.http_url) as client:
        await client.sign_in(made.secret)
        yield client


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def foreign_key(running_system: System) -> str:
    """An API key, with all scopes, of another project."""
    return await running_system.key_of_other_project()


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """Chromium."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium, from the packages of the system")
    async with open_browser() as started:
        yield started


@pytest_asyncio.fixture(loop_scope="session")
async def window(system: System, browser: Browser) -> AsyncIterator[Window]:
    """A browser window signed in with all scopes; it must show no fault."""
    async with open_window(browser, system.http_url) as opened:
        link = sign_in_link(system.http_url, system.gateway_settings.pepper(), system.key)
        await opened.page.goto(link)
        yield opened
        assert opened.faults == []
