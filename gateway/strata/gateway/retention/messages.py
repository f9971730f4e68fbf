"""Reads from recall for how long a project keeps its messages."""

from __future__ import annotations

import grpc.aio

from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.api.recall.v1 import message_service_pb2_grpc as message_grpc
from strata.gateway.project_callers import ProjectCallers
from strata.shared.context import RequestContext, use
from strata.shared.scopes import Scope

_PRINCIPAL = "retention"
_TIMEOUT_S = 10.0


class MessageRetention:
    """Reads the retention of messages from recall, on behalf of a project.

    Args:
        recall: Channel to recall.
        callers: Makes the caller of the project.
    """

    def __init__(self, recall: grpc.aio.Channel, callers: ProjectCallers) -> None:
        self._stub = message_grpc.MessageServiceStub(recall)
        self._callers = callers

    async def days(self, project_id: str) -> float:
        """Returns for how many days a project keeps messages; 0 if without limit, or unknown.

        It is unknown if the project does not exist.

        Raises:
            StrataError: The call to recall failed.
        """
        caller = await self._callers.of(project_id, _PRINCIPAL, {Scope.READ.value})
        if caller is None:
            return 0.0
        with use(RequestContext(caller=caller)):
            response = await self._stub.GetRetention(
                message_pb.GetRetentionRequest(), timeout=_TIMEOUT_S
            )
        return float(response.retention.days)
