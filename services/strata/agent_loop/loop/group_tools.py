"""Adds the tool of a group to an agent for a run of the group. Pure functions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from strata.agent_loop.domain.agent.agents import Agent
from strata.agent_loop.domain.agent.groups import GroupTool
from strata.agent_loop.domain.tools import Tool, ToolSet
from strata.shared.member_labels import labels_of, member_lines
from strata.shared.tool_catalogue import GROUP_TOOLS, HAND_OVER

_AGENT = "agent"


def in_run(agent: Agent, tool: GroupTool | None) -> Agent:
    """Returns an agent with the tools that it has in a run.

    Args:
        agent: The stored agent.
        tool: The tool that its group offers; None outside of groups.
    """
    own = tuple(name for name in agent.tools if name not in GROUP_TOOLS)
    tools = own if tool is None else (*own, tool.name)
    return agent if tools == agent.tools else replace(agent, tools=tools)


def with_members(toolset: ToolSet, tool: GroupTool | None) -> ToolSet:
    """Returns the tools, with the group's members listed in the description of the group's tool.

    The schema of ``hand_over`` accepts only the members' labels as agent.
    """
    if tool is None:
        return toolset
    return ToolSet(
        tuple(
            _described(offered, tool) if offered.name == tool.name else offered
            for offered in toolset.tools
        )
    )


def _described(offered: Tool, tool: GroupTool) -> Tool:
    names = [member.name for member in tool.members]
    lines = member_lines(names, [member.description for member in tool.members])
    schema = offered.schema
    listed = (f"- {line}" for line in lines)
    description = "\n".join([f"{schema.description} The other agents:", *listed])
    parameters: dict[str, Any] = dict(schema.parameters)
    if tool.name == HAND_OVER:
        properties = dict(parameters["properties"])
        properties[_AGENT] = {**properties[_AGENT], "enum": list(labels_of(names))}
        parameters["properties"] = properties
    return replace(offered, schema=replace(schema, description=description, parameters=parameters))
