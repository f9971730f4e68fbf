"""The pages of keys, projects and usage."""

from __future__ import annotations

import html
import json
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from console_client import ConsoleClient, shown
from console_records import make_schedule
from doubles.script import say
from strata.api.gateway.v1 import admin_service_pb2 as admin_pb
from strata.shared.scopes import OrganizationScope, Scope
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

HTMX = {"hx-request": "true"}
_SECRET = re.compile(r'value="(sk-strata-[^"]+)"')


@pytest_asyncio.fixture(loop_scope="session")
async def operator(system: System) -> AsyncIterator[ConsoleClient]:
    """A console client signed in with the organization key."""
    async with ConsoleClient(system.http_url) as client:
        assert (await client.sign_in(system.organization_key)).status_code == 303
        yield client


async def key_named(system: System, name: str) -> admin_pb.ApiKey:
    listing = await system.admin.ListApiKeys(admin_pb.ListApiKeysRequest(page_size=500))
    [key] = [key for key in listing.api_keys if key.name == name]
    return key


async def test_key_is_created_shown_once_and_revoked(system: System, ann: ConsoleClient) -> None:
    name = "reader <script>alert(1)<br>"
    form = {"name": name, "scope": [Scope.READ], "lifetime": "7"}
    path = f"/projects/{system.project_id}/keys"
    created = await ann.post(path, form, headers=HTMX)
    assert created.status_code == 200, created.text
    match = _SECRET.search(created.text)
    assert match is not None
    secret = match.group(1)
    assert created.headers["cache-control"] == "no-store"
    key = await key_named(system, name)
    assert list(key.scopes) == [Scope.READ]
    assert key.expire_time.seconds - key.create_time.seconds in range(604_700, 604_900)
    listing = (await ann.get("/keys")).text
    assert shown(name) in listing
    assert "<script>alert" not in listing + created.text
    assert secret not in listing

    async with ConsoleClient(system.http_url) as reader:
        await reader.sign_in(secret)
        refused = await reader.get("/keys")
        assert refused.status_code == 403
        assert "Your key does not permit this" in refused.text
        assert "scopes read" in refused.text
        assert (await reader.get("/usage")).status_code == 403
    revoked = await ann.post(f"/keys/{key.id}/revoke", headers=HTMX)
    assert "is revoked" in revoked.text
    assert (await key_named(system, name)).HasField("revoke_time")


async def test_revoking_pauses_schedules_of_the_key(system: System, ann: ConsoleClient) -> None:
    agent = await system.make_agent()
    made = await system.admin.CreateApiKey(
        admin_pb.CreateApiKeyRequest(name="scheduler", scopes=[Scope.RUN, Scope.READ])
    )
    other = system.client(made.secret)
    try:
        await make_schedule(other, agent, text="Yearly.")
    finally:
        await other.channel.close()
    path = f"/keys/{made.api_key.id}/revoke"
    revoked = await ann.post(path, {"pause_schedules": "on"}, headers=HTMX)
    assert "1 schedule paused" in " ".join(revoked.text.split())


async def test_a_key_cannot_grant_scopes_that_it_lacks(system: System, ann: ConsoleClient) -> None:
    made = await system.admin.CreateApiKey(
        admin_pb.CreateApiKeyRequest(name="keeper", scopes=[Scope.ADMIN, Scope.READ])
    )
    async with ConsoleClient(system.http_url) as keeper:
        await keeper.sign_in(made.secret)
        page = (await keeper.get("/keys")).text
        assert set(re.findall(r'name="scope" value="(\w+)"', page)) == {"read", "secrets", "admin"}
    path = f"/projects/{system.project_id}/keys"
    odd = await ann.post(path, {"name": "odd", "lifetime": "forever"})
    assert (odd.status_code, "lifetime" in odd.text) == (400, True)


async def test_operator_makes_projects_and_keys(system: System, operator: ConsoleClient) -> None:
    name = "shop <b onclick=alert(1)>"
    created = await operator.post("/projects", {"name": name, "request_id": "console-1"})
    assert created.status_code == 303, created.text
    path = created.headers["location"].removeprefix("/console")
    page = (await operator.get(path)).text
    assert shown(name) in page
    assert "<b onclick" not in page + (await operator.get("/projects")).text
    key = await operator.post(f"{path}/keys", {"name": "shop", "scope": [Scope.READ, Scope.RUN]})
    match = _SECRET.search(key.text)
    assert match is not None
    other = system.client(match.group(1))
    try:
        identity = await other.admin.WhoAmI(admin_pb.WhoAmIRequest())
    finally:
        await other.channel.close()
    assert identity.project.name == name
    assert path.endswith(identity.project.id)
    assert (await operator.get(f"{path}/usage")).status_code == 200


async def test_organization_keys_are_made_and_revoked(
    system: System, operator: ConsoleClient
) -> None:
    form = {"name": "auditor", "scope": [OrganizationScope.READ]}
    created = await operator.post("/keys/organization", form)
    match = _SECRET.search(created.text)
    assert match is not None
    async with ConsoleClient(system.http_url) as auditor:
        await auditor.sign_in(match.group(1))
        page = (await auditor.get("/keys")).text
        assert "auditor" in page
        assert "New key" not in page, "the key has only the read scope"
        key_id = page.partition('<span class="tag accent">yours')[2]
        key_id = key_id.partition("<code>")[2].partition("</code>")[0]
        assert "Usage of all projects" in (await auditor.get("/usage")).text
    revoked = await operator.post(f"/keys/organization/{key_id}/revoke")
    assert "is revoked" in revoked.text


async def test_usage_is_drawn_and_listed(system: System, ann: ConsoleClient) -> None:
    agent = await system.make_agent()
    system.model.script(say("Hello."), say("Hello again."))
    for text in ("One.", "Two."):
        await system.send(agent, text)
    usage = await system.admin.GetUsage(admin_pb.GetUsageRequest(agent_id=agent.id))
    assert usage.run_count == 2
    for period in ("day", "week", "month", "quarter"):
        page = (await ann.get("/usage", params={"agent": agent.name, "period": period})).text
        tokens, runs = (
            json.loads(html.unescape(data)) for data in re.findall(r'data-chart="([^"]+)"', page)
        )
        assert sum(tokens["series"][0]["values"]) == usage.prompt_tokens
        assert [sum(series["values"]) for series in runs["series"]] == [2, 2]
        assert page.count("<tr>") == len(runs["times"]) + 1, "a row for each figure of the chart"
        assert f"<dd>{usage.prompt_tokens:,}</dd>" in page
    unknown = await ann.get("/usage", params={"agent": "nobody of this name"})
    assert unknown.status_code == 404


async def test_pages_of_a_project_explain_which_key_they_need(
    operator: ConsoleClient, ann: ConsoleClient
) -> None:
    for path in ("/runs", "/schedules", "/groups", "/memory-agents", "/tools", "/mcp"):
        refused = await operator.get(path)
        assert refused.status_code == 403, path
        assert "an organization key with the scopes" in refused.text
    own = (await ann.get("/projects")).text
    assert "This is the project of your key" in own
