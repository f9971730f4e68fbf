"""`approvals.ApprovalStore` in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from strata.gateway.runs.domain.approvals import Approval, ApprovalFilter, DueApproval
from strata.gateway.runs.domain.principals import Principal
from strata.gateway.runs.store.base import RunTables, run_not_found
from strata.gateway.runs.store.conditions import PENDING_APPROVAL
from strata.gateway.runs.store.rows import principal_of
from strata.protocol.errors import NotFoundError, Reason
from strata.shared.db import Row, SqlStatement, sql
from strata.shared.waiting_work import any_row_sql

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)

# Approvals of a deleted agent cannot be answered, and are not approved at their deadline.
_CLOSE = sql("""
UPDATE gateway.approvals SET decide_time = now()
 WHERE project_id = :project_id AND agent_id = :agent_id AND decide_time IS NULL
""")

_APPROVAL = f"""id, agent_id, conversation_id, run_id, request, expire_time, create_time,
    NOT ({PENDING_APPROVAL}) AS decided, answer_run_id"""

_BY_ID = sql(
    f"SELECT {_APPROVAL} FROM gateway.approvals WHERE project_id = :project_id AND id = :id"
)


def _list_statement(filters: Iterable[str]) -> SqlStatement:
    """Returns the statement that lists approvals with the given filters.

    Args:
        filters: Names of filters: agent_id, conversation_id, pending, after.
    """
    conditions = "".join(f" AND {_APPROVAL_FILTERS[name]}" for name in filters)
    return sql(
        f"SELECT {_APPROVAL} FROM gateway.approvals WHERE project_id = :project_id{conditions}"
        " ORDER BY id LIMIT :limit"
    )


_ASKED_BY = sql("""
SELECT organization_id, project_id, principal, scopes, max_steps FROM gateway.runs
 WHERE project_id = :project_id AND id = :run_id
""")

_APPROVAL_FILTERS = {
    "agent_id": "agent_id = :agent_id",
    "conversation_id": "conversation_id = :conversation_id",
    "pending": PENDING_APPROVAL,
    "after": "id > :after",
}

_APPROVAL_DUE = "default_approve AND decide_time IS NULL AND expire_time <= now()"
ANY_APPROVAL_DUE = any_row_sql("gateway.approvals", _APPROVAL_DUE, order="expire_time")
"""SQL expression: whether a deadline has passed that approves."""
_DUE = sql(f"""
SELECT project_id, id, expire_time FROM gateway.approvals
 WHERE {_APPROVAL_DUE}
   AND (expire_time, id) > (CAST(:after_time AS timestamptz), CAST(:after_id AS text))
 ORDER BY expire_time, id LIMIT :limit
""")


class PostgresApprovals(RunTables):
    """Stores requests for approval."""

    async def approval(self, project_id: str, approval_id: str) -> Approval:
        """See `ApprovalStore.approval`."""
        values = {"project_id": project_id, "id": approval_id}
        row = (await self._read(_BY_ID, values)).one_or_none()
        if row is None:
            raise NotFoundError(
                f"There is no approval {approval_id}.",
                reason=Reason.APPROVAL_NOT_FOUND,
                metadata={"id": approval_id},
            )
        return _approval(row)

    async def approvals(
        self, project_id: str, which: ApprovalFilter, *, after: str | None, limit: int
    ) -> Sequence[Approval]:
        """See `ApprovalStore.approvals`."""
        conditions: dict[str, object] = {
            "agent_id": which.agent_id,
            "conversation_id": which.conversation_id,
            "pending": not which.include_decided,
            "after": after,
        }
        filters = {name: value for name, value in conditions.items() if value}
        values = {**filters, "project_id": project_id, "limit": limit}
        values.pop("pending", None)
        result = await self._read(_list_statement(filters), values)
        return [_approval(row) for row in result]

    async def close_approvals(self, project_id: str, agent_id: str) -> None:
        """See `ApprovalStore.close_approvals`."""
        values = {"project_id": project_id, "agent_id": agent_id}
        await self._database.execute(_CLOSE, values, project_id=project_id)

    async def asked_by(self, project_id: str, run_id: str) -> tuple[Principal, int]:
        """See `ApprovalStore.asked_by`."""
        values = {"project_id": project_id, "run_id": run_id}
        row = (await self._read(_ASKED_BY, values)).one_or_none()
        if row is None:
            raise run_not_found(run_id)
        return principal_of(row), row["max_steps"]

    async def due_approvals(self, after: DueApproval | None, limit: int) -> Sequence[DueApproval]:
        """See `ApprovalStore.due_approvals`."""
        values = {
            "after_time": after.expire_time if after else _LONG_AGO,
            "after_id": after.id if after else "",
            "limit": limit,
        }
        rows = await self._worker.system_query(_DUE, values)
        return [DueApproval(row.project_id, row.id, row.expire_time) for row in rows]


def _approval(row: Row) -> Approval:
    return Approval(
        id=row["id"],
        agent_id=row["agent_id"],
        conversation_id=row["conversation_id"],
        run_id=row["run_id"],
        request=bytes(row["request"]),
        expire_time=row["expire_time"],
        create_time=row["create_time"],
        decided=row["decided"],
        answer_run_id=row["answer_run_id"] or "",
    )
