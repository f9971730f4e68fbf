"""Access to the pages of the console, and the permissions of the pages."""

from __future__ import annotations

import re
from typing import Any

import pytest
import pytest_asyncio
from starlette.routing import Route

from console_client import ConsoleClient
from console_records import furnish
from doubles.script import call, say
from image_samples import png
from run_events import RunStream
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.archival.v1.passage_service_pb2 import InsertPassageRequest, NewPassage
from strata.api.common.v1 import message_pb2
from strata.api.common.v1.tool_pb2 import TOOL_RULE_TYPE_REQUIRES_APPROVAL, ToolRule
from strata.api.core_memory.v1.block_service_pb2 import NewBlock
from strata.api.core_memory.v1.file_service_pb2 import AttachFolderRequest
from strata.api.gateway.v1 import admin_service_pb2 as admin_pb
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.gateway.console.application import VIEWS, console_application
from strata.gateway.console.sealing import Sealer
from strata.gateway.console.sign_in_links import LINK_LIFETIME_S, LinkTokens, sign_in_link
from strata.gateway.console.visits import SIGN_IN_PATH, ViewRoute
from strata.shared.clock import ManualClock
from strata.shared.scopes import Scope
from uploading import make_folder, upload
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECRET_TEXT = "marigold-7c2e is what only this project knows"
OPEN_ROUTES = {
    ("GET", "/sign-in"),
    ("POST", "/sign-in"),
    ("GET", "/sign-in/link"),
    # Browsers return here from the site of an authorization server, without the cookie.
    ("GET", "/mcp/{mcp_server_id}/sign-in/return"),
}
"""The only pages that need no session; files of the folder static are open, too."""
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")


def named(view: ViewRoute) -> str:
    return f"{view.method} {view.path}"


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def known_ids(running_system: System) -> dict[str, str]:
    """Creates objects in the project of the system; returns ids by the parameter name of a path."""
    system = running_system
    agent = await system.make_agent(
        name="keeper of secrets",
        description=SECRET_TEXT,
        blocks=[NewBlock(label="persona", value=SECRET_TEXT)],
        tool_rules=[
            ToolRule(type=TOOL_RULE_TYPE_REQUIRES_APPROVAL, tool_name="conversation_search")
        ],
    )
    system.model.script(
        say(SECRET_TEXT),
        call("conversation_search", {"query": SECRET_TEXT}),
    )
    shown = message_pb2.ImagePart(data=png())
    sent = message_pb2.MessageInput(
        parts=[
            message_pb2.Part(text=message_pb2.TextPart(text=SECRET_TEXT)),
            message_pb2.Part(image=shown),
        ]
    )
    request = run_pb.SendMessageRequest(agent_id=agent.id, messages=[sent])
    first = await RunStream(system.runs.SendMessage(request)).rest()
    await system.send(agent, "Search for it.")
    waiting = await system.runs.ListApprovals(run_pb.ListApprovalsRequest(agent_id=agent.id))
    images = [
        part.image.image_id
        for message in await system.log(agent)
        for part in message.parts
        if part.HasField("image")
    ]
    passage = await system.passages.InsertPassage(
        InsertPassageRequest(agent_id=agent.id, passage=NewPassage(text=SECRET_TEXT))
    )
    folder = await make_folder(system, "marigold")
    await system.files.AttachFolder(AttachFolderRequest(agent_id=agent.id, folder_id=folder.id))
    file = await upload(system, folder.id, "marigold.txt", SECRET_TEXT.encode())
    return {
        **await furnish(system, SECRET_TEXT),
        "agent_id": agent.id,
        "block_id": (await system.block(agent, "persona")).id,
        "run_id": first.run_id,
        "approval_id": waiting.approvals[0].request.approval_id,
        "image_id": images[0],
        "passage_id": passage.passage.id,
        "folder_id": folder.id,
        "file_id": file.id,
    }


def path_of(view: ViewRoute, known_ids: dict[str, str]) -> str:
    """Returns the path of a view, with ids of this project."""
    return _PARAMETER.sub(lambda match: known_ids[match.group(1)], view.path)


async def test_only_sign_in_and_static_files_are_open() -> None:
    application: Any = console_application(
        None,  # type: ignore[arg-type]
        "secret",
        max_body_bytes=1,
        started=0.0,
    )
    with_session = {(view.method, view.path) for view in VIEWS} | {("POST", "/sign-out")}
    routes = {
        (method, route.path)
        for route in application.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert routes - with_session == OPEN_ROUTES
    assert [route.path for route in application.routes if not isinstance(route, Route)] == [
        "/static"
    ]


@pytest.mark.parametrize("view", VIEWS, ids=named)
async def test_view_without_session_leads_to_sign_in(
    nobody: ConsoleClient, known_ids: dict[str, str], view: ViewRoute
) -> None:
    path = path_of(view, known_ids)
    send: Any = {"GET": nobody.get, "POST": nobody.post, "PUT": nobody.put}[view.method]
    response = await send(path)
    assert response.status_code == 303
    assert response.headers["location"].startswith(SIGN_IN_PATH)
    assert response.content == b""


@pytest.mark.parametrize("view", [view for view in VIEWS if view.method == "GET"], ids=named)
async def test_view_shows_nothing_of_another_project(
    nobody: ConsoleClient, foreign_key: str, known_ids: dict[str, str], view: ViewRoute
) -> None:
    await nobody.sign_in(foreign_key)
    response = await nobody.get(path_of(view, known_ids))
    if _PARAMETER.search(view.path):
        assert response.status_code == 404, response.text
    else:
        assert response.status_code in (200, 303)
    assert "marigold" not in response.text
    assert "keeper of secrets" not in response.text


@pytest.mark.parametrize(
    "view",
    [view for view in VIEWS if view.method != "GET" and _PARAMETER.search(view.path)],
    ids=named,
)
async def test_view_changes_nothing_of_another_project(
    nobody: ConsoleClient, foreign_key: str, known_ids: dict[str, str], view: ViewRoute
) -> None:
    await nobody.sign_in(foreign_key)
    send: Any = nobody.put if view.method == "PUT" else nobody.post
    response = await send(path_of(view, known_ids))
    # A project key has no access to the organization.
    assert response.status_code in (400, 403, 404), response.text
    assert "marigold" not in response.text
    assert "keeper of secrets" not in response.text


@pytest.mark.parametrize("view", [view for view in VIEWS if view.method != "GET"], ids=named)
async def test_view_that_changes_something_needs_the_token_of_the_session(
    system: System, ann: ConsoleClient, known_ids: dict[str, str], view: ViewRoute
) -> None:
    path = path_of(view, known_ids)
    async with ConsoleClient(system.http_url) as other:
        await other.sign_in(system.key)
    send: Any = ann.put if view.method == "PUT" else ann.post
    refusals = [
        await send(path, token=""),
        await send(path, token=other.csrf_token),
        await send(path, origin="http://127.0.0.1:1"),
        await send(path, origin="null"),
    ]
    assert [response.status_code for response in refusals] == [403] * 4
    assert "not from your session" in refusals[0].text
    kept = await system.agents.GetAgent(agent_pb.GetAgentRequest(agent_id=known_ids["agent_id"]))
    assert kept.agent.revision == 1


async def test_session_needs_a_valid_key(nobody: ConsoleClient) -> None:
    for api_key in ("nonsense", "sk-strata-" + "0" * 32 + "." + "A" * 43, "\u200bkey", ""):
        response = await nobody.sign_in(api_key)
        assert response.status_code in (400, 401)
        assert "set-cookie" not in response.headers
        assert "<form" in response.text


async def test_sign_in_form_of_another_origin_is_refused(
    system: System, nobody: ConsoleClient
) -> None:
    for headers in ({}, {"origin": "http://127.0.0.1:1"}, {"origin": "null"}):
        response = await nobody.http.post(
            SIGN_IN_PATH, data={"api_key": system.key}, headers=headers
        )
        assert response.status_code == 403
        assert "set-cookie" not in response.headers


async def test_cookie_hides_the_key_from_scripts_and_other_sites(
    system: System, nobody: ConsoleClient
) -> None:
    response = await nobody.sign_in(system.key)
    cookie = response.headers["set-cookie"]
    attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/console"} <= attributes
    assert system.key not in cookie
    assert system.key.partition(".")[2] not in cookie


async def test_a_changed_cookie_is_not_accepted(ann: ConsoleClient) -> None:
    [(name, value)] = ann.http.cookies.items()
    ann.http.cookies.clear()
    middle = len(value) // 2
    changed = value[:middle] + ("A" if value[middle] != "A" else "B") + value[middle + 1 :]
    for forged in (changed, value + "A", value[:-4], "", "%00", "ÿ"):
        cookie = f"{name}={forged}".encode("latin-1")
        response = await ann.get("/agents", headers={b"cookie": cookie})
        assert response.status_code == 303, forged


async def test_revoked_key_ends_the_session(system: System, nobody: ConsoleClient) -> None:
    made = await system.admin.CreateApiKey(
        admin_pb.CreateApiKeyRequest(
            project_id=system.project_id, name="short-lived", scopes=[Scope.READ]
        )
    )
    await nobody.sign_in(made.secret)
    assert (await nobody.get("/agents")).status_code == 200
    await system.admin.RevokeApiKey(admin_pb.RevokeApiKeyRequest(api_key_id=made.api_key.id))
    response = await nobody.get("/agents")
    assert response.headers["location"].startswith(SIGN_IN_PATH)
    assert "max-age=0" in response.headers["set-cookie"].lower()


async def test_key_without_write_scope_changes_nothing(
    reader: ConsoleClient, known_ids: dict[str, str]
) -> None:
    response = await reader.post(f"/agents/{known_ids['agent_id']}/delete")
    assert response.status_code == 403
    assert "SCOPE_MISSING" in response.text


async def test_an_organization_key_cannot_read_agents(
    system: System, nobody: ConsoleClient
) -> None:
    await nobody.http.post(
        SIGN_IN_PATH,
        data={"api_key": system.organization_key},
        headers={"origin": nobody.origin},
    )
    assert "has no access to agents" in (await nobody.get("/")).text
    assert (await nobody.get("/agents")).status_code == 403


async def test_sign_out_ends_the_session(ann: ConsoleClient) -> None:
    assert (await ann.post("/sign-out", token="")).status_code == 403
    assert (await ann.get("/agents")).status_code == 200
    response = await ann.post("/sign-out")
    assert response.headers["location"] == SIGN_IN_PATH
    assert (await ann.get("/agents")).status_code == 303


async def test_sign_in_redirects_only_within_the_console(
    system: System, nobody: ConsoleClient
) -> None:
    for wanted, target in (
        ("/console/agents?name=a", "/console/agents?name=a"),
        ("https://elsewhere.example/", "/console/"),
        ("//elsewhere.example/console/", "/console/"),
        ("/console/\\elsewhere.example", "/console/"),
        ("/console/sign-in/link?token=a", "/console/"),
        ("/console/a\r\nset-cookie: b=c", "/console/"),
    ):
        response = await nobody.http.post(
            SIGN_IN_PATH,
            data={"api_key": system.key, "next": wanted},
            headers={"origin": nobody.origin},
        )
        assert response.headers["location"] == target


async def test_link_signs_in_once(system: System, nobody: ConsoleClient) -> None:
    secret = system.gateway_settings.pepper()
    link = sign_in_link(system.http_url, secret, system.key)
    assert system.key not in link
    first = await nobody.http.get(link)
    assert (first.status_code, first.headers["location"]) == (303, "/console/")
    assert (await nobody.get("/agents")).status_code == 200
    async with ConsoleClient(system.http_url) as other:
        again = await other.http.get(link)
    assert again.status_code == 403
    assert "set-cookie" not in again.headers
    assert "has been used or has expired" in again.text


async def test_link_is_refused_after_its_time_and_after_a_restart() -> None:
    clock = ManualClock()
    sealer = Sealer("the secret of the server", clock)
    started = clock.now().timestamp()

    def token() -> str:
        link = sign_in_link("http://host", "the secret of the server", "key", clock=clock)
        return link.partition("token=")[2]

    of_now, of_before = token(), token()
    assert LinkTokens(sealer, clock, started).take(of_now) == "key"
    assert LinkTokens(sealer, clock, started + 1).take(of_before) is None
    clock.advance(LINK_LIFETIME_S)
    assert LinkTokens(sealer, clock, started).take(of_before) is None
    assert LinkTokens(Sealer("another secret", clock), clock, started).take(token()) is None
    assert LinkTokens(sealer, clock, started).take(sealer.seal("session", "key", 60)) is None


@pytest.mark.parametrize("path", ["/sign-in", "/agents", "/agents/new", "/nothing", "/static/no"])
async def test_pages_have_a_strict_content_security_policy(ann: ConsoleClient, path: str) -> None:
    response = await ann.get(path)
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert response.headers["x-content-type-options"] == "nosniff"
    expected = "no-cache" if path.startswith("/static") else "no-store"
    assert response.headers["cache-control"] == expected
    # The content security policy would block inline scripts, so a page that has one is broken.
    # Texts have no "<".
    inline = r"<script(?![^>]* src=)|<style|<[^>]*\s(?:style|on\w+)=|=[\"']?javascript:"
    assert not re.search(inline, response.text)
