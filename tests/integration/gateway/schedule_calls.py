"""Calls of ScheduleService."""

from __future__ import annotations

from typing import Any

from integration.gateway.scripted_services import Gateway, message
from strata.api.gateway.v1 import schedule_service_pb2 as pb
from strata.api.gateway.v1 import schedule_service_pb2_grpc as pb_grpc
from strata.shared.ids import new_id

YEARLY = "0 0 1 1 *"


class Schedules:
    """Calls of ScheduleService at one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._stub = pb_grpc.ScheduleServiceStub(gateway.channel)
        self._call: dict[str, Any] = {"metadata": gateway.metadata, "timeout": 30}

    async def create(self, agent_id: str, **fields: Any) -> pb.Schedule:
        fields = {"name": new_id("name"), "messages": [message("Good morning")], **fields}
        if "start_time" not in fields:
            fields.setdefault("cron", YEARLY)
        request = pb.CreateScheduleRequest(agent_id=agent_id, **fields)
        return (await self._stub.CreateSchedule(request, **self._call)).schedule

    async def get(self, schedule_id: str) -> pb.Schedule:
        request = pb.GetScheduleRequest(schedule_id=schedule_id)
        return (await self._stub.GetSchedule(request, **self._call)).schedule

    async def list(self, **fields: Any) -> pb.ListSchedulesResponse:
        return await self._stub.ListSchedules(pb.ListSchedulesRequest(**fields), **self._call)

    async def update(self, schedule_id: str, **fields: Any) -> pb.Schedule:
        request = pb.UpdateScheduleRequest(schedule_id=schedule_id, **fields)
        return (await self._stub.UpdateSchedule(request, **self._call)).schedule

    async def ticks(self, schedule_id: str, **fields: Any) -> pb.ListScheduleTicksResponse:
        request = pb.ListScheduleTicksRequest(schedule_id=schedule_id, **fields)
        return await self._stub.ListScheduleTicks(request, **self._call)
