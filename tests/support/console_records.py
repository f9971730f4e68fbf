"""Creates an object of every kind that the console shows."""

from __future__ import annotations

from chat_messages import user_message
from doubles.script import say
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.agent_loop.v1 import group_service_pb2 as group_pb
from strata.api.common.v1 import tool_pb2
from strata.api.gateway.v1 import admin_service_pb2 as admin_pb
from strata.api.gateway.v1 import schedule_service_pb2 as schedule_pb
from strata.api.gateway.v1 import schedule_service_pb2_grpc as schedule_grpc
from strata.api.tool_execution.v1 import mcp_service_pb2 as mcp_pb
from strata.api.tool_execution.v1 import mcp_service_pb2_grpc as mcp_grpc
from strata.api.tool_execution.v1 import tool_service_pb2 as tool_service_pb
from strata.shared.ids import new_id
from strata.standalone.ports import pick_port
from whole_system import System, SystemClient

YEARLY = "0 0 1 1 *"
"""A time at which a schedule is not due during any test."""


async def furnish(system: System, text: str) -> dict[str, str]:
    """Creates objects that contain a text; returns their ids by the parameter name of a path."""
    agent = await system.make_agent(description=text)
    system.model.script(say(text))
    turn = await system.send(agent, text)
    schedule = await make_schedule(system, agent, text=text)
    group = await system.groups.CreateGroup(
        group_pb.CreateGroupRequest(agent_ids=[agent.id], description=text)
    )
    tool = await system.tools.UpsertTool(
        tool_service_pb.UpsertToolRequest(
            type=tool_pb2.TOOL_TYPE_CLIENT,
            name=f"look_up_{new_id('x')[-8:]}",
            description=text,
            parameters_json='{"type": "object", "properties": {}, "required": []}',
        )
    )
    server = await mcp_grpc.McpServiceStub(system.channel).AddMcpServer(
        mcp_pb.AddMcpServerRequest(
            server=mcp_pb.McpServer(
                name=f"far-{new_id('x')[-8:]}",
                transport=mcp_pb.MCP_TRANSPORT_STREAMABLE_HTTP,
                url=f"http://127.0.0.1:{pick_port()}/mcp",
            )
        )
    )
    key = await system.admin.CreateApiKey(admin_pb.CreateApiKeyRequest(name=text))
    return {
        "run_id": turn.run_id,
        "schedule_id": schedule.id,
        "group_id": group.group.id,
        "tool_id": tool.tool.id,
        "mcp_server_id": server.server.id,
        "api_key_id": key.api_key.id,
        "project_id": system.project_id,
    }


async def make_schedule(
    system: SystemClient, agent: agent_pb.Agent, *, text: str, name: str = ""
) -> schedule_pb.Schedule:
    """Creates a schedule that is not due before the next year."""
    request = schedule_pb.CreateScheduleRequest(
        name=name or f"{text[:90]} {new_id('x')[-8:]}",
        agent_id=agent.id,
        cron=YEARLY,
        messages=[user_message(text)],
    )
    stub = schedule_grpc.ScheduleServiceStub(system.channel)
    schedule: schedule_pb.Schedule = (await stub.CreateSchedule(request)).schedule
    return schedule


async def make_tool(system: System, source: str, **fields: object) -> tool_service_pb.Tool:
    """Stores a custom tool."""
    request = tool_service_pb.UpsertToolRequest(source_code=source, **fields)  # type: ignore[arg-type]
    tool: tool_service_pb.Tool = (await system.tools.UpsertTool(request)).tool
    return tool
