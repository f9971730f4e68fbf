"""Converts tools of groups from protos."""

from __future__ import annotations

from strata.agent_loop.convert.checks import refuse
from strata.agent_loop.domain.agent.groups import GroupMember, GroupTool
from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.protocol.errors import FieldViolation
from strata.shared.tool_catalogue import GROUP_TOOLS


def group_tool_from_proto(wire: turn_pb.GroupTool) -> GroupTool:
    """Returns the tool that an agent is offered in a run of its group.

    Raises:
        InvalidArgumentError: It is not a group tool, or has no members.
    """
    if wire.name not in GROUP_TOOLS:
        problem = f"must be one of: {', '.join(sorted(GROUP_TOOLS))}"
        refuse([FieldViolation("group_tool.name", problem)])
    if not wire.members:
        refuse([FieldViolation("group_tool.members", "must not be empty")])
    return GroupTool(
        wire.name,
        tuple(
            GroupMember(member.agent_id, member.name, member.description) for member in wire.members
        ),
    )
