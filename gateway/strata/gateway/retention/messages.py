"""Reads from recall for how long a project keeps its messages."""

from __future__ import annotations

import grpc.aio
from sqlalchemy import text

from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.api.recall.v1 import message_service_pb2_grpc as message_grpc
from strata.shared.auth import TokenSigner
from strata.shared.context import Caller, RequestContext, use
from strata.shared.db import Database
from strata.shared.scopes import Scope

_PRINCIPAL = "retention"
_TIMEOUT_S = 10.0
_PROJECT = text(
    "SELECT organization_id, partition FROM gateway.projects WHERE project_id = :project_id"
)


class MessageRetention:
    """Reads the retention of messages from recall, on behalf of a project.

    Args:
        recall: Channel to recall.
        signer: Signs the token of the call.
        database: Connections with the service role, for organization and partition of the project.
    """

    def __init__(self, recall: grpc.aio.Channel, signer: TokenSigner, database: Database) -> None:
        self._stub = message_grpc.MessageServiceStub(recall)
        self._signer = signer
        self._database = database

    async def days(self, project_id: str) -> float:
        """Returns the days for which a project keeps messages; 0 for ever or a missing project.

        Raises:
            StrataError: The call to recall failed.
        """
        async with self._database.transaction(project_id=project_id, read_only=True) as connection:
            result = await connection.execute(_PROJECT, {"project_id": project_id})
            row = result.one_or_none()
        if row is None:
            return 0.0
        scopes = frozenset({Scope.READ.value})
        token = self._signer.mint(
            row.organization_id, project_id, _PRINCIPAL, scopes, partition=row.partition
        )
        caller = Caller(
            row.organization_id,
            project_id,
            _PRINCIPAL,
            scopes,
            token=token,
            partition=row.partition,
        )
        with use(RequestContext(caller=caller)):
            response = await self._stub.GetRetention(
                message_pb.GetRetentionRequest(), timeout=_TIMEOUT_S
            )
        return float(response.retention.days)
