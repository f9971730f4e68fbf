"""Servicer of `RunFollowService`, with which other gateways follow runs of this one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from strata.api.gateway.v1 import run_follow_service_pb2 as pb
from strata.api.gateway.v1 import run_follow_service_pb2_grpc as pb_grpc
from strata.gateway.runs.events.run_follower import RunFollower
from strata.shared.context import current_project
from strata.shared.ids import check_id


class RunFollowServicer(pb_grpc.RunFollowServiceServicer):
    """Streams runs to other gateways.

    Args:
        follower: Streams the events of runs.
    """

    def __init__(self, follower: RunFollower) -> None:
        self._follower = follower

    async def FollowRun(
        self, request: pb.FollowRunRequest, context: Any
    ) -> AsyncIterator[pb.FollowRunResponse]:
        """Streams a run while this gateway holds it."""
        run_id = check_id(request.run_id, "run", field="run_id")
        events = self._follower.follow_held(
            current_project(), run_id, request.after_sequence, tokens=request.stream_tokens
        )
        async with aclosing(events):
            await context.send_initial_metadata(())
            async for event in events:
                yield pb.FollowRunResponse(event=event)
