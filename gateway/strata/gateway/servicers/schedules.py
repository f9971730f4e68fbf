"""Servicer of `ScheduleService`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from strata.api.gateway.v1 import schedule_service_pb2 as pb
from strata.api.gateway.v1 import schedule_service_pb2_grpc as pb_grpc
from strata.gateway.runs.clients import AgentDirectory
from strata.gateway.runs.convert.runs import principal_of
from strata.gateway.schedules import convert
from strata.gateway.schedules.domain import ScheduleStore
from strata.gateway.schedules.timing import TimingError
from strata.protocol.errors import Reason
from strata.shared.context import current_project, require_caller
from strata.shared.db import Page, decode_page_token, page_limit
from strata.shared.ids import check_id
from strata.shared.logs import get_logger

_log = get_logger(__name__)


class ScheduleServicer(pb_grpc.ScheduleServiceServicer):
    """The public API of schedules.

    Args:
        store: The schedules.
        agents: Checks that agents exist.
    """

    def __init__(self, store: ScheduleStore, agents: AgentDirectory) -> None:
        self._store = store
        self._agents = agents

    async def CreateSchedule(
        self, request: pb.CreateScheduleRequest, context: Any
    ) -> pb.CreateScheduleResponse:
        """Creates a schedule."""
        new = convert.new_schedule(request, require_caller())
        project_id = current_project()
        await self._agents.check(project_id, new.plan.agent_id, new.plan.conversation_id)
        try:
            schedule = await self._store.create(project_id, new)
        except TimingError as error:
            raise convert.refusal(error) from None
        return pb.CreateScheduleResponse(schedule=convert.schedule_to_pb(schedule))

    async def GetSchedule(
        self, request: pb.GetScheduleRequest, context: Any
    ) -> pb.GetScheduleResponse:
        """Returns a schedule."""
        schedule = await self._store.get(current_project(), _id(request.schedule_id))
        return pb.GetScheduleResponse(schedule=convert.schedule_to_pb(schedule))

    async def ListSchedules(
        self, request: pb.ListSchedulesRequest, context: Any
    ) -> pb.ListSchedulesResponse:
        """Lists schedules, newest first."""
        if request.agent_id:
            check_id(request.agent_id, "agent", field="agent_id")
        scope = f"schedules|{request.agent_id}|{request.name}"
        limit = page_limit(request.page_size, maximum=100)
        key = decode_page_token(scope, request.page_token, (str,))
        schedules = await self._store.list(
            current_project(),
            agent_id=request.agent_id,
            name=request.name,
            before=str(key[0]) if key else None,
            limit=limit + 1,
        )
        page = Page.cut(schedules, limit, scope, lambda schedule: (schedule.id,))
        return pb.ListSchedulesResponse(
            schedules=map(convert.schedule_to_pb, page.rows), next_page_token=page.next_page_token
        )

    async def UpdateSchedule(
        self, request: pb.UpdateScheduleRequest, context: Any
    ) -> pb.UpdateScheduleResponse:
        """Changes a schedule."""
        project_id, schedule_id = current_project(), _id(request.schedule_id)
        before = await self._store.get(project_id, schedule_id)
        name, plan, timing = convert.changed_schedule(request, before, require_caller())
        try:
            schedule = await self._store.update(
                project_id, schedule_id, name=name, plan=plan, timing=timing
            )
        except TimingError as error:
            raise convert.refusal(error) from None
        return pb.UpdateScheduleResponse(schedule=convert.schedule_to_pb(schedule))

    async def PauseSchedule(
        self, request: pb.PauseScheduleRequest, context: Any
    ) -> pb.PauseScheduleResponse:
        """Pauses a schedule."""
        schedule = await self._store.pause(current_project(), _id(request.schedule_id))
        return pb.PauseScheduleResponse(schedule=convert.schedule_to_pb(schedule))

    async def ResumeSchedule(
        self, request: pb.ResumeScheduleRequest, context: Any
    ) -> pb.ResumeScheduleResponse:
        """Resumes a schedule."""
        project_id, schedule_id = current_project(), _id(request.schedule_id)
        plan = (await self._store.get(project_id, schedule_id)).plan
        await self._agents.check(project_id, plan.agent_id, plan.conversation_id)
        principal = principal_of(require_caller())
        schedule = await self._store.resume(project_id, schedule_id, principal)
        return pb.ResumeScheduleResponse(schedule=convert.schedule_to_pb(schedule))

    async def DeleteSchedule(
        self, request: pb.DeleteScheduleRequest, context: Any
    ) -> pb.DeleteScheduleResponse:
        """Deletes a schedule."""
        await self._store.delete(current_project(), _id(request.schedule_id))
        return pb.DeleteScheduleResponse()

    async def ListScheduleTicks(
        self, request: pb.ListScheduleTicksRequest, context: Any
    ) -> pb.ListScheduleTicksResponse:
        """Lists past ticks, newest first."""
        schedule_id = _id(request.schedule_id)
        scope = f"schedule_ticks|{schedule_id}"
        limit = page_limit(request.page_size, maximum=500)
        key = decode_page_token(scope, request.page_token, (datetime,))
        before = key[0] if key else None
        assert before is None or isinstance(before, datetime)
        ticks = await self._store.ticks(
            current_project(), schedule_id, before=before, limit=limit + 1
        )
        page = Page.cut(ticks, limit, scope, lambda tick: (tick.tick_time,))
        return pb.ListScheduleTicksResponse(
            ticks=map(convert.tick_to_pb, page.rows), next_page_token=page.next_page_token
        )

    async def disable_of_deleted(self, agent_id: str) -> None:
        """Disables the schedules of a deleted agent.

        Raises:
            UnavailableError: The database cannot be reached.
        """
        await self._store.disable_of_agent(
            current_project(), agent_id, Reason.AGENT_NOT_FOUND.value
        )


def _id(schedule_id: str) -> str:
    return check_id(schedule_id, "schedule", field="schedule_id")
