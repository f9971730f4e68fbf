"""Agents: list, search, create, clone, settings, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.responses import Response

from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.api.agent_loop.v1 import model_service_pb2 as model_pb
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.api.tool_execution.v1 import tool_service_pb2 as tool_pb
from strata.gateway.console.forms import FormFields
from strata.gateway.console.visits import ViewRoute, Visit
from strata.protocol.errors import FieldViolation, InvalidArgumentError
from strata.shared.agent_types import AgentType
from strata.shared.convert.enums import EnumTable
from strata.shared.ids import new_id

_TYPES = EnumTable(pb.AgentType, AgentType)
_PAGE = 50
_MAX_TOOLS = 500
_BLOCK_LABELS = ("persona", "human")
_NEW_BLOCK_ROWS = 2


async def home(visit: Visit) -> Response:
    """Shows the agents; an organization key has none."""
    if not visit.identity.project.id:
        return visit.page("organization_key.html")
    return visit.go_to("/agents")


async def list_agents(visit: Visit) -> Response:
    """Lists agents, by a part of their name or a tag."""
    name, tag = visit.query("name").strip(), visit.query("tag").strip()
    listing = await visit.services.agents.ListAgents(
        pb.ListAgentsRequest(
            name_contains=name,
            tags=[tag] if tag else [],
            page_size=_PAGE,
            page_token=visit.query("page"),
        )
    )
    return visit.page(
        "agents/rows.html" if visit.by_htmx else "agents/list.html",
        name=name,
        tag=tag,
        agents=listing.agents,
        next_page=listing.next_page_token,
        type_name=type_name,
    )


async def new_agent(visit: Visit) -> Response:
    """Shows the form for a new agent."""
    models, tools = await asyncio.gather(
        visit.services.models.ListModels(model_pb.ListModelsRequest()),
        visit.services.tools.ListTools(tool_pb.ListToolsRequest(page_size=_MAX_TOOLS)),
    )
    return visit.page(
        "agents/new.html",
        request_id=new_id("console"),
        models=models.models,
        notice=models.notice,
        tools=tools.tools,
        types=list(AgentType),
        block_labels=_BLOCK_LABELS,
        new_blocks=range(_NEW_BLOCK_ROWS),
    )


async def create_agent(visit: Visit) -> Response:
    """Creates an agent from the form."""
    form = visit.form
    texts = [(label, form.text(f"block-{label}")) for label in _BLOCK_LABELS]
    labels, values = form.fields.get("label", []), form.fields.get("value", [])
    texts += [
        (label.strip(), value.replace("\r\n", "\n"))
        for label, value in zip(labels, values, strict=False)
        if label.strip()
    ]
    with_blocks = form.checked("with_blocks")
    request = pb.CreateAgentRequest(
        request_id=form.text("request_id"),
        name=form.text("name").strip(),
        description=form.text("description").strip(),
        type=_type_in(form),
        model=pb.ModelConfig(handle=form.text("model")),
        blocks=[block_pb.NewBlock(label=label, value=text) for label, text in texts]
        if with_blocks
        else [],
        without_blocks=not with_blocks,
        tools=form.texts("tool"),
        tags=form.text("tags").replace(",", " ").split(),
        timezone=form.text("timezone").strip(),
        enable_sleeptime=form.checked("enable_sleeptime"),
    )
    if (system := form.text("system")).strip():
        request.system = system
    created = await visit.services.agents.CreateAgent(request)
    return visit.go_to(f"/agents/{created.agent.id}/chat")


def _type_in(form: FormFields) -> pb.AgentType.ValueType:
    text = form.text("type") or AgentType.LETTA_V1.value
    if text not in set(AgentType):
        expected = ", ".join(AgentType)
        raise InvalidArgumentError(
            "The agent cannot be created.",
            violations=[FieldViolation("type", f"{text!r} is not one of {expected}")],
        )
    return _TYPES.to_proto[AgentType(text)]


async def settings(visit: Visit) -> Response:
    """Shows the settings of an agent, with forms to clone and to delete it."""
    agent = await agent_of(visit)
    return visit.page("agents/settings.html", agent=agent, type_name=type_name)


async def clone_agent(visit: Visit) -> Response:
    """Creates an agent with the settings of another one, and with copies of its blocks."""
    agent = await agent_of(visit)
    blocks = await blocks_of(visit, agent.id)
    tainted = [block for block in blocks if block.taint]
    request = pb.CreateAgentRequest(
        name=visit.form.text("name").strip(),
        description=agent.description,
        type=agent.type,
        system=agent.system,
        model=agent.model,
        blocks=[
            block_pb.NewBlock(
                label=block.label,
                value="" if block.taint else block.value,
                description=block.description,
                limit=block.limit,
                read_only=block.read_only and not block.taint,
                metadata=block.metadata,
            )
            for block in blocks
        ],
        without_blocks=not blocks,
        tools=agent.tools,
        include_base_tools=False,
        tool_rules=agent.tool_rules,
        include_base_tool_rules=False,
        tags=agent.tags,
        timezone=agent.timezone,
        metadata=agent.metadata,
        enable_sleeptime=agent.enable_sleeptime,
        sleeptime_agent_frequency=agent.sleeptime_agent_frequency,
        message_buffer_autoclear=agent.message_buffer_autoclear,
        max_files_open=agent.max_files_open,
        per_file_view_window_char_limit=agent.per_file_view_window_char_limit,
        compaction=agent.compaction,
        packaging=agent.packaging,
        response_format=agent.response_format,
        max_message_buffer_length=agent.max_message_buffer_length,
        min_message_buffer_length=agent.min_message_buffer_length,
    )
    created = await visit.services.agents.CreateAgent(request)
    for block in tainted:
        await _copy_tainted(visit, block, created.agent.id)
    return visit.go_to(f"/agents/{created.agent.id}/settings")


async def _copy_tainted(visit: Visit, block: block_pb.Block, agent_id: str) -> None:
    """Copies the text of a block with the mark of untrusted content, which only an edit can set."""
    edited = await visit.services.blocks.EditBlock(
        block_pb.EditBlockRequest(
            agent_id=agent_id,
            label=block.label,
            rethink=block_pb.RethinkEdit(new_memory=block.value),
            origin=block_pb.EditOrigin(
                kind=block_pb.EDITOR_KIND_USER,
                reason=f"copy of {block.id}",
                taint=block.taint,
            ),
        )
    )
    if block.read_only:
        await visit.services.blocks.UpdateBlock(
            block_pb.UpdateBlockRequest(block_id=edited.block.id, read_only=True)
        )


async def delete_agent(visit: Visit) -> Response:
    """Deletes an agent."""
    request = pb.DeleteAgentRequest(agent_id=visit.argument("agent_id"))
    await visit.services.agents.DeleteAgent(request)
    return visit.go_to("/agents")


async def agent_of(visit: Visit) -> pb.Agent:
    """Returns the agent in the path of a request.

    Raises:
        NotFoundError: There is no such agent in the project of the key.
    """
    request = pb.GetAgentRequest(agent_id=visit.argument("agent_id"))
    agent: pb.Agent = (await visit.services.agents.GetAgent(request)).agent
    return agent


async def blocks_of(visit: Visit, agent_id: str) -> Sequence[block_pb.Block]:
    """Returns the blocks of an agent, in the order in which its model sees them."""
    request = block_pb.ListBlocksRequest(agent_id=agent_id, page_size=500)
    blocks: Sequence[block_pb.Block] = (await visit.services.blocks.ListBlocks(request)).blocks
    return blocks


def type_name(agent: pb.Agent) -> str:
    """Returns the name of an agent's type."""
    agent_type = _TYPES.from_proto.get(agent.type)
    return "" if agent_type is None else agent_type.value


VIEWS = (
    ViewRoute("/", home),
    ViewRoute("/agents", list_agents),
    ViewRoute("/agents", create_agent, "POST"),
    ViewRoute("/agents/new", new_agent),
    ViewRoute("/agents/{agent_id}/settings", settings),
    ViewRoute("/agents/{agent_id}/clone", clone_agent, "POST"),
    ViewRoute("/agents/{agent_id}/delete", delete_agent, "POST"),
)
