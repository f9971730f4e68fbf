"""Changing and deleting groups, schedules, tools and MCP servers with forms, without scripts."""

from __future__ import annotations

import re

import pytest

from chat_messages import user_message
from console_client import HOSTILE, ConsoleClient, shown
from console_forms import Fields, form_in
from console_records import YEARLY, make_schedule, make_tool
from image_samples import png
from strata.api.agent_loop.v1 import group_service_pb2 as group_pb
from strata.api.common.v1 import message_pb2, tool_pb2
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.api.gateway.v1 import schedule_service_pb2 as schedule_pb
from strata.api.gateway.v1 import schedule_service_pb2_grpc as schedule_grpc
from strata.api.tool_execution.v1 import mcp_service_pb2 as mcp_pb
from strata.api.tool_execution.v1 import mcp_service_pb2_grpc as mcp_grpc
from strata.api.tool_execution.v1 import tool_service_pb2 as tool_service_pb
from strata.protocol.errors import NotFoundError
from strata.shared.ids import new_id
from strata.standalone.ports import pick_port
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

SOURCE = '''
def {name}(beds: int) -> str:
    """{description}

    Args:
        beds: How many beds.
    """
    return str(beds)
'''


async def opened(ann: ConsoleClient, path: str) -> Fields:
    """Returns the fields of a form that is shown at the path that it is sent to."""
    response = await ann.get(path)
    assert response.status_code == 200, response.text
    return form_in(response.text, path)


def beside(page: str, name: str) -> str:
    """Returns the problem that a page shows beside a field."""
    marked = re.search(rf'id="{name}-problem">(.*?)</div>', page, re.DOTALL)
    assert marked is not None, page
    assert f"{name}-problem" in page.replace(marked.group(), "")
    return marked.group(1)


async def group_of(system: System, group_id: str) -> group_pb.Group:
    request = group_pb.GetGroupRequest(group_id=group_id)
    group: group_pb.Group = (await system.groups.GetGroup(request)).group
    return group


async def test_group_is_created_changed_and_deleted(system: System, ann: ConsoleClient) -> None:
    first, second, third = [await system.make_agent(description=HOSTILE) for _ in range(3)]
    form = await opened(ann, "/groups/new")
    form |= {"description": [HOSTILE], "member": [first.name, second.id, ""]}
    created = await ann.post("/groups/new", form)
    assert created.status_code == 303, created.text
    path = created.headers["location"].removeprefix("/console")
    group = await group_of(system, path.rpartition("/")[2])
    assert [member.agent_id for member in group.members] == [first.id, second.id]

    form = await opened(ann, f"{path}/edit")
    assert form["member"][:2] == [first.name, second.name]
    shared = block_pb.CreateBlockRequest(block=block_pb.NewBlock(label="beds", value="Three."))
    block = (await system.blocks.CreateBlock(shared)).block.id
    changes = {
        "description": ["Gardeners."],
        "type": ["dynamic"],
        "manager": [first.name],
        "max_turns": ["5"],
        "member": [third.name, second.name],
        "added_block": [block],
    }
    saved = await ann.post(f"{path}/edit", form | changes)
    assert saved.status_code == 303, saved.text
    changed = await group_of(system, group.id)
    assert changed.manager.type == group_pb.MANAGER_TYPE_DYNAMIC
    assert (changed.manager.manager_agent_id, changed.manager.max_turns) == (first.id, 5)
    assert [member.agent_id for member in changed.members] == [third.id, second.id]
    assert (changed.description, list(changed.shared_block_ids)) == ("Gardeners.", [block])

    # What somebody else has changed since the first form was opened is not overwritten.
    stale = await ann.post(f"{path}/edit", form | {"description": ["Cooks."]})
    assert stale.status_code == 409
    assert "REVISION_MISMATCH" in stale.text
    assert form_in(stale.text, f"{path}/edit")["description"] == ["Cooks."]
    assert (await group_of(system, group.id)).description == "Gardeners."
    deleted = await ann.post(f"{path}/delete")
    assert deleted.headers["location"] == "/console/groups"
    with pytest.raises(NotFoundError):
        await group_of(system, group.id)


async def test_refused_group_is_shown_with_the_problems_beside_its_fields(
    system: System, ann: ConsoleClient
) -> None:
    agent = await system.make_agent()
    group = (
        await system.groups.CreateGroup(group_pb.CreateGroupRequest(agent_ids=[agent.id]))
    ).group
    path = f"/groups/{group.id}/edit"
    form = await opened(ann, path)
    written = {"description": [HOSTILE], "max_turns": ["101"], "termination_token": ["OVER"]}
    refused = await ann.post(path, form | written)
    assert refused.status_code == 400
    assert "0 and 100" in beside(refused.text, "max_turns")
    assert "dynamic" in beside(refused.text, "termination_token")
    assert "<script>alert" not in refused.text
    kept = form_in(refused.text, path)
    assert kept["description"] == [HOSTILE]
    assert kept["max_turns"] == ["101"]
    nobody = await ann.post(path, form | {"member": ["nobody of this name"]})
    assert "nobody of this name" in beside(nobody.text, "member")
    assert (await group_of(system, group.id)).revision == group.revision


async def test_schedule_is_changed(system: System, ann: ConsoleClient) -> None:
    agent = await system.make_agent()
    stub = schedule_grpc.ScheduleServiceStub(system.channel)
    picture = message_pb2.Part(image=message_pb2.ImagePart(data=png()))
    message = user_message(HOSTILE)
    message.parts.append(picture)
    stored = (
        await stub.CreateSchedule(
            schedule_pb.CreateScheduleRequest(
                name=f"yearly {new_id('x')[-8:]}",
                agent_id=agent.id,
                cron=YEARLY,
                time_zone="Europe/Lisbon",
                messages=[message],
            )
        )
    ).schedule
    path = f"/schedules/{stored.id}/edit"
    form = await opened(ann, path)
    assert (form["cron"], form["time_zone"]) == ([YEARLY], ["Europe/Lisbon"])
    assert form["text-0-0"] == [HOSTILE]
    saved = await ann.post(path, form | {"text-0-0": ["Tidy up."], "enqueue": ["on"]})
    assert saved.status_code == 303, saved.text
    request = schedule_pb.GetScheduleRequest(schedule_id=stored.id)
    changed = (await stub.GetSchedule(request)).schedule
    assert changed.messages[0].parts[0].text.text == "Tidy up."
    assert changed.messages[0].parts[1] == picture
    assert changed.on_overlap == schedule_pb.ON_OVERLAP_ENQUEUE
    assert (changed.cron, changed.next_time) == (YEARLY, stored.next_time)

    stale = await ann.post(path, form | {"name": ["weekly"]})
    assert (stale.status_code, "was changed after" in stale.text) == (409, True)
    form = await opened(ann, path)
    both = await ann.post(path, form | {"start_time": ["2090-01-01T10:00"]})
    assert "either this" in beside(both.text, "cron")
    wrong = await ann.post(path, form | {"cron": ["every day"]})
    assert wrong.status_code == 400
    assert beside(wrong.text, "cron")
    once = await ann.post(path, form | {"cron": [""], "start_time": ["2090-01-01T10:00:30"]})
    assert once.status_code == 303, once.text
    changed = (await stub.GetSchedule(request)).schedule
    assert (changed.cron, changed.start_time.ToJsonString()) == ("", "2090-01-01T10:00:30Z")
    assert (await opened(ann, path))["start_time"] == ["2090-01-01T10:00:30"]


async def test_schedule_of_one_time_keeps_it(system: System, ann: ConsoleClient) -> None:
    schedule = await make_schedule(system, await system.make_agent(), text="Hello.")
    path = f"/schedules/{schedule.id}/edit"
    form = await opened(ann, path)
    refused = await ann.post(path, form | {"text-0-0": [" "], "max_steps": ["201"]})
    assert refused.status_code == 400
    assert "200" in beside(refused.text, "max_steps")


async def tool_of(system: System, tool_id: str) -> tool_service_pb.Tool:
    request = tool_service_pb.GetToolRequest(tool_id=tool_id)
    tool: tool_service_pb.Tool = (await system.tools.GetTool(request)).tool
    return tool


async def test_tool_is_created_changed_and_deleted(system: System, ann: ConsoleClient) -> None:
    name = f"plant_{new_id('x')[-8:]}"
    form = await opened(ann, "/tools/new")
    source = SOURCE.format(name=name, description="Plants <b>beds</b>.")
    created = await ann.post("/tools/new", form | {"source_code": [source], "tags": ["a, b\r\nc"]})
    assert created.status_code == 303, created.text
    path = created.headers["location"].removeprefix("/console")
    tool = await tool_of(system, path.rpartition("/")[2])
    assert (tool.name, list(tool.tags)) == (name, ["a, b", "c"])

    # Saving an unchanged form does not make a new version.
    form = await opened(ann, f"{path}/edit")
    assert form["source_code"] == [source]
    assert (await ann.post(f"{path}/edit", form)).status_code == 303
    assert (await tool_of(system, tool.id)).version == tool.version
    # The tool gets a written description, and another effect.
    changes = {"description": ["Digs."], "effect": ["read_only"], "return_char_limit": ["900"]}
    await ann.post(f"{path}/edit", form | changes)
    changed = await tool_of(system, tool.id)
    assert (changed.description, changed.return_char_limit) == ("Digs.", 900)
    assert changed.effect == tool_pb2.TOOL_EFFECT_READ_ONLY
    # A changed source replaces the description and the arguments, under the same name.
    source = SOURCE.format(name="sow", description="Sows.").replace("beds", "rows")
    stale = await ann.post(f"{path}/edit", form | {"source_code": [source]})
    assert (stale.status_code, "was changed after" in stale.text) == (409, True)
    form = await opened(ann, f"{path}/edit")
    saved = await ann.post(f"{path}/edit", form | {"source_code": [source]})
    assert saved.status_code == 303, saved.text
    changed = await tool_of(system, tool.id)
    assert (changed.id, changed.name, changed.description) == (tool.id, name, "Sows.")
    assert '"rows"' in changed.parameters_json

    form = await opened(ann, f"{path}/edit")
    wrong = {"source_code": ["def f(:"], "allowed_hosts": ["http://x"], "return_char_limit": ["-"]}
    refused = await ann.post(f"{path}/edit", form | wrong)
    assert "whole number" in beside(refused.text, "return_char_limit")
    refused = await ann.post(f"{path}/edit", form | wrong | {"return_char_limit": ["9"]})
    assert refused.status_code == 400
    assert "line 1" in beside(refused.text, "source_code")
    assert beside(refused.text, "allowed_hosts")
    assert form_in(refused.text, f"{path}/edit")["source_code"] == ["def f(:"]
    deleted = await ann.post(f"{path}/delete")
    assert deleted.headers["location"] == "/console/tools"
    with pytest.raises(NotFoundError):
        await tool_of(system, tool.id)


async def test_tool_of_the_server_is_not_changed(system: System, ann: ConsoleClient) -> None:
    request = tool_service_pb.GetToolRequest(name="archival_memory_search")
    builtin = (await system.tools.GetTool(request)).tool
    page = (await ann.get(f"/tools/{builtin.id}")).text
    assert "/edit" not in page
    refused = await ann.post(f"/tools/{builtin.id}/edit", {"source_code": "def f(): ..."})
    assert (refused.status_code, "cannot be changed here" in refused.text) == (400, True)


async def test_a_key_without_write_scope_is_not_offered_changes(
    system: System, ann: ConsoleClient, reader: ConsoleClient
) -> None:
    tool = await make_tool(system, SOURCE.format(name=f"x_{new_id('x')[-8:]}", description="X."))
    assert "/edit" in (await ann.get(f"/tools/{tool.id}")).text
    assert "/edit" not in (await reader.get(f"/tools/{tool.id}")).text
    form = await opened(reader, f"/tools/{tool.id}/edit")
    refused = await reader.post(f"/tools/{tool.id}/edit", form | {"description": ["Y."]})
    assert (refused.status_code, "SCOPE_MISSING" in refused.text) == (403, True)
    assert (await tool_of(system, tool.id)).version == tool.version


async def test_mcp_server_is_changed_without_its_credentials_being_shown(
    system: System, ann: ConsoleClient
) -> None:
    servers = mcp_grpc.McpServiceStub(system.channel)
    url = f"http://127.0.0.1:{pick_port()}/mcp?apikey=k3y-0123456789%2Babc&user=ada"
    added = await servers.AddMcpServer(
        mcp_pb.AddMcpServerRequest(
            server=mcp_pb.McpServer(
                name=f"shop-{new_id('x')[-8:]}",
                transport=mcp_pb.MCP_TRANSPORT_STREAMABLE_HTTP,
                url=url,
                headers={"X-Shop-Token": "t0ken-of-the-shop", "X-Team": "garden"},
                header_secrets={"X-Other": "SHOP_KEY"},
                client_credentials=mcp_pb.McpClientCredentials(
                    issuer="http://127.0.0.1:9", client_id="strata", client_secret="SHOP_CLIENT"
                ),
            )
        )
    )
    server_id = added.server.id
    request = mcp_pb.GetMcpServerRequest(mcp_server_id=server_id)
    path = f"/mcp/{server_id}/edit"
    for place in ("/mcp", f"/mcp/{server_id}", path):
        page = (await ann.get(place)).text
        assert "k3y-0123456789" not in page
        assert "t0ken-of-the-shop" not in page
    form = await opened(ann, path)
    assert form["headers"] == ["X-Shop-Token: [secret X-Shop-Token]\nX-Team: garden"]
    assert form["header_secrets"] == ["X-Other: SHOP_KEY"]
    assert (form["sign_in"], form["client_secret"]) == (["client"], ["SHOP_CLIENT"])
    headers = form["headers"][0].replace("garden", "kitchen")
    changes = {"headers": [headers], "call_timeout": ["7"], "disabled": ["on"]}
    saved = await ann.post(path, form | changes)
    assert saved.status_code == 303, saved.text
    changed = (await servers.GetMcpServer(request)).server
    assert dict(changed.headers) == {"X-Shop-Token": "t0ken-of-the-shop", "X-Team": "kitchen"}
    assert (changed.url, changed.call_timeout_seconds, changed.disabled) == (url, 7, True)
    assert changed.client_credentials == added.server.client_credentials

    stale = await ann.post(path, form | {"call_timeout": ["8"]})
    assert (stale.status_code, "was changed after" in stale.text) == (409, True)
    form = await opened(ann, path)
    for written, name in (
        ({"url": ["ftp://x"]}, "url"),
        ({"headers": ["X-New: [secret nothing]"]}, "headers"),
        ({"headers": ["no separator"]}, "headers"),
        ({"sign_in": ["person"], "bearer_secret": ["SHOP_KEY"]}, "sign_in"),
        ({"call_timeout": ["601"]}, "call_timeout"),
    ):
        refused = await ann.post(path, form | written)
        assert refused.status_code == 400, written
        assert beside(refused.text, name), written
        assert "t0ken-of-the-shop" not in refused.text
    # A new value replaces one credential, while another credential is kept.
    written = {"headers": ["X-Shop-Token: another-token"], "url": [form["url"][0] + "&page=2"]}
    assert (await ann.post(path, form | written)).status_code == 303
    changed = (await servers.GetMcpServer(request)).server
    assert dict(changed.headers) == {"X-Shop-Token": "another-token"}
    assert changed.url == url + "&page=2"
    assert shown("another-token") not in (await ann.get(path)).text
