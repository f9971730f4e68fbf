"""GroupService: converts requests, calls the lifecycle, converts the results."""

from __future__ import annotations

from typing import Any

from strata.agent_loop.agents.groups import GroupLifecycle
from strata.agent_loop.convert.groups import (
    create_from_proto,
    group_to_proto,
    manager_type_from_proto,
    update_from_proto,
)
from strata.agent_loop.domain.agent.groups import GroupStore
from strata.api.agent_loop.v1 import group_service_pb2 as pb
from strata.api.agent_loop.v1 import group_service_pb2_grpc as pb_grpc
from strata.shared.db import Page, decode_page_token, page_limit
from strata.shared.ids import check_id

Context = Any
MAX_PAGE_SIZE = 500


class GroupServicer(pb_grpc.GroupServiceServicer):
    """Groups of agents; the gateway starts their runs."""

    def __init__(self, lifecycle: GroupLifecycle, store: GroupStore) -> None:
        self._lifecycle = lifecycle
        self._store = store

    async def CreateGroup(
        self, request: pb.CreateGroupRequest, context: Context
    ) -> pb.CreateGroupResponse:
        """Creates a group."""
        group = await self._lifecycle.create(create_from_proto(request))
        return pb.CreateGroupResponse(group=group_to_proto(group))

    async def GetGroup(self, request: pb.GetGroupRequest, context: Context) -> pb.GetGroupResponse:
        """Returns a group."""
        check_id(request.group_id, "group", field="group_id")
        group = await self._store.get(request.group_id)
        return pb.GetGroupResponse(group=group_to_proto(group))

    async def ListGroups(
        self, request: pb.ListGroupsRequest, context: Context
    ) -> pb.ListGroupsResponse:
        """Lists groups by id."""
        if request.agent_id:
            check_id(request.agent_id, "agent", field="agent_id")
        manager_type = manager_type_from_proto(request.manager_type)
        limit = page_limit(request.page_size, maximum=MAX_PAGE_SIZE)
        scope = f"ListGroups {request.manager_type} {request.agent_id}"
        key = decode_page_token(scope, request.page_token, (str,))
        rows = await self._store.page(
            manager_type, request.agent_id, limit + 1, str(key[0]) if key else ""
        )
        page = Page.cut(rows, limit, scope, lambda group: (group.id,))
        return pb.ListGroupsResponse(
            groups=map(group_to_proto, page.rows), next_page_token=page.next_page_token
        )

    async def UpdateGroup(
        self, request: pb.UpdateGroupRequest, context: Context
    ) -> pb.UpdateGroupResponse:
        """Changes the fields that are set."""
        group = await self._lifecycle.update(update_from_proto(request))
        return pb.UpdateGroupResponse(group=group_to_proto(group))

    async def DeleteGroup(
        self, request: pb.DeleteGroupRequest, context: Context
    ) -> pb.DeleteGroupResponse:
        """Deletes a group."""
        check_id(request.group_id, "group", field="group_id")
        await self._store.delete(request.group_id)
        return pb.DeleteGroupResponse()
