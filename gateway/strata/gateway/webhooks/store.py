"""Store of webhooks and their deliveries in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from strata.gateway.runs.store.statements import webhook_deliveries_sql
from strata.gateway.webhooks.domain import (
    RETRIES_S,
    Attempt,
    AttemptResult,
    Delivery,
    DeliveryState,
    DueDelivery,
    NewWebhook,
    Webhook,
)
from strata.protocol.errors import (
    NotFoundError,
    Reason,
    ResourceExhaustedError,
)
from strata.shared.db import Database, DatabaseConnection, Row, sql
from strata.shared.idempotency.keys import check_same_request
from strata.shared.project_turns import PendingInTurn
from strata.shared.waiting_work import any_row_sql

# Seconds after which an attempt of a dead gateway is repeated; longer than any attempt takes.
LEASE_S = 120.0

_DUE = "state = 'PENDING' AND next_time <= now()"
ANY_DELIVERY_DUE = any_row_sql("gateway.webhook_deliveries", _DUE)
"""SQL expression: whether a delivery is due."""

_WEBHOOK = "id, url, events, agent_id, run_id, enabled, create_time"
_DELIVERY = """id, webhook_id, run_id, event, state, attempts, tries, next_time, last_status,
    last_error, last_attempt_time, create_time"""
_ONE = "project_id = :project_id AND id = :delivery_id"

# Serialises the creations of a project, so that each one sees the count of the others.
_LOCK = sql("SELECT pg_advisory_xact_lock(hashtextextended('webhooks ' || :project_id, 0))")
_KNOWN = sql(
    f"SELECT {_WEBHOOK}, request_hash FROM gateway.webhooks"
    " WHERE project_id = :project_id AND request_id = :request_id"
)
# Webhooks of single runs that are delivered do not count.
_COUNT = sql("""
SELECT count(*) FROM gateway.webhooks webhook
 WHERE project_id = :project_id AND (run_id = '' OR EXISTS (
       SELECT FROM gateway.runs run
        WHERE run.project_id = webhook.project_id AND run.id = webhook.run_id
          AND run.finish_time IS NULL)
    OR EXISTS (
       SELECT FROM gateway.webhook_deliveries delivery
        WHERE delivery.project_id = webhook.project_id AND delivery.webhook_id = webhook.id
          AND delivery.state = 'PENDING'))
""")
_INSERT = sql(f"""
INSERT INTO gateway.webhooks (project_id, id, request_id, request_hash, url, events, agent_id,
    run_id, sealed_secret)
VALUES (:project_id, :webhook_id, :request_id, :request_hash, :url, :events, :agent_id, :run_id,
    :sealed_secret)
RETURNING {_WEBHOOK}
""")
# In a second transaction: a run that ended during the creation did not see the webhook, unless
# there is a delivery already.
_CATCH_UP = sql(f"""
WITH ended AS (
    SELECT id AS run_id, agent_id, state FROM gateway.runs
     WHERE project_id = :project_id AND id = :run_id AND finish_time IS NOT NULL
)
{webhook_deliveries_sql("ended", only="webhook.id = :webhook_id")}
""")
_DELETE = sql(
    "DELETE FROM gateway.webhooks WHERE project_id = :project_id AND id = :webhook_id RETURNING id"
)


def _due_of_project(direction: str) -> str:
    return f"""
    (SELECT id, webhook_id, row_number() OVER (ORDER BY next_time {direction}) AS place
       FROM gateway.webhook_deliveries
      WHERE project_id = :project_id AND {_DUE}
        AND webhook_id <> ALL(CAST(:without_webhooks AS text[]))
      ORDER BY next_time {direction} LIMIT :limit)"""


# The oldest and the newest, like `PendingInTurn`.
_DUE_OF_PROJECT = sql(f"""
SELECT id, webhook_id
  FROM ({_due_of_project("ASC")} UNION ALL {_due_of_project("DESC")}) pending
 GROUP BY id, webhook_id ORDER BY min(place)
""")
_TAKE = sql(f"""
UPDATE gateway.webhook_deliveries
   SET attempts = attempts + 1, tries = tries + 1, last_attempt_time = now(),
       next_time = now() + make_interval(secs => :lease_s)
 WHERE {_ONE} AND state = 'PENDING' AND next_time <= now()
RETURNING {_DELIVERY}, CAST(extract(epoch FROM now()) AS bigint) AS timestamp
""")
_TARGET = sql("""
SELECT url, sealed_secret FROM gateway.webhooks
 WHERE project_id = :project_id AND id = :webhook_id
""")
# The attempt number is the fence: a slow gateway cannot change a later attempt.
_NOTE = sql(f"""
UPDATE gateway.webhook_deliveries
   SET state = :state, last_status = :status, last_error = :error,
       next_time = CASE WHEN :state = 'PENDING' THEN now() + make_interval(secs => :pause_s) END
 WHERE {_ONE} AND attempts = :attempts AND state = 'PENDING'
RETURNING id
""")
_DISABLE = sql("""
UPDATE gateway.webhooks SET enabled = false
 WHERE project_id = :project_id AND id = :webhook_id
""")
_ENABLE = sql("""
UPDATE gateway.webhooks SET enabled = true
 WHERE project_id = :project_id AND id = :webhook_id AND NOT enabled
""")
_AGAIN = sql(f"""
UPDATE gateway.webhook_deliveries SET state = 'PENDING', tries = 0, next_time = now()
 WHERE {_ONE}
RETURNING {_DELIVERY}
""")


class PostgresWebhookStore:
    """Store of webhooks and deliveries.

    Args:
        database: Connections with the service role; every transaction sets its project.
        worker: Connections with the worker role, for finding due deliveries of all projects.
        per_project: Maximum number of webhooks per project. A webhook of a single run no longer
            counts after its delivery.
    """

    def __init__(self, database: Database, worker: Database, *, per_project: int) -> None:
        self._database = database
        self._per_project = per_project
        self._due = PendingInTurn(
            worker,
            "gateway.webhook_deliveries",
            _DUE,
            "next_time",
        )

    async def create(self, project_id: str, new: NewWebhook) -> tuple[Webhook, bool]:
        """Stores a webhook.

        A repeated request_id returns its first webhook.

        Returns:
            The webhook, and whether it is new.

        Raises:
            AlreadyExistsError: The request_id was used with another request.
            ResourceExhaustedError: The project has the maximum number of webhooks.
        """
        async with self._database.transaction(project_id=project_id) as connection:
            await connection.execute(_LOCK, {"project_id": project_id})
            existing = await self._known(connection, project_id, new)
            webhook = existing or await self._insert(connection, project_id, new)
        if webhook.run_id:
            values = {"project_id": project_id, "run_id": webhook.run_id, "webhook_id": webhook.id}
            async with self._database.transaction(project_id=project_id) as connection:
                await connection.execute(_CATCH_UP, values)
        return webhook, existing is None

    async def list(self, project_id: str, *, before: str | None, limit: int) -> Sequence[Webhook]:
        """Returns webhooks, newest first; only those before the id `before`, unless it is None."""
        condition = " AND id < :before" if before else ""
        statement = sql(
            f"SELECT {_WEBHOOK} FROM gateway.webhooks WHERE project_id = :project_id{condition}"
            " ORDER BY id DESC LIMIT :limit"
        )
        values = {
            "project_id": project_id,
            "limit": limit,
            **({"before": before} if before else {}),
        }
        async with self._database.transaction(project_id=project_id, read_only=True) as connection:
            return [_webhook(row) for row in (await connection.execute(statement, values))]

    async def delete(self, project_id: str, webhook_id: str) -> None:
        """Deletes a webhook and its deliveries.

        Raises:
            NotFoundError: There is none (``WEBHOOK_NOT_FOUND``).
        """
        values = {"project_id": project_id, "webhook_id": webhook_id}
        async with self._database.transaction(project_id=project_id) as connection:
            deleted = (await connection.execute(_DELETE, values)).scalar_one_or_none()
        if deleted is None:
            raise NotFoundError(
                f"There is no webhook {webhook_id}.",
                reason=Reason.WEBHOOK_NOT_FOUND,
                metadata={"id": webhook_id},
            )

    async def deliveries(
        self,
        project_id: str,
        *,
        webhook_id: str,
        run_id: str,
        state: DeliveryState | None,
        before: tuple[datetime, str] | None,
        limit: int,
    ) -> Sequence[Delivery]:
        """Returns deliveries, newest first; only those before `before`, unless it is None."""
        filters: dict[str, object] = {"webhook_id": webhook_id, "run_id": run_id}
        filters["state"] = state.value if state else ""
        filters = {name: value for name, value in filters.items() if value}
        conditions = "".join(f" AND {name} = :{name}" for name in filters)
        if before is not None:
            conditions += " AND (create_time, id) < (CAST(:time AS timestamptz), :id)"
            filters |= {"time": before[0], "id": before[1]}
        statement = sql(
            f"SELECT {_DELIVERY} FROM gateway.webhook_deliveries"
            f" WHERE project_id = :project_id{conditions}"
            " ORDER BY create_time DESC, id DESC LIMIT :limit"
        )
        values = {**filters, "project_id": project_id, "limit": limit}
        async with self._database.transaction(project_id=project_id, read_only=True) as connection:
            rows = await connection.execute(statement, values)
            return [_delivery(row) for row in rows]

    async def deliver_again(self, project_id: str, delivery_id: str) -> Delivery:
        """Queues a delivery again, and enables its webhook.

        Raises:
            NotFoundError: There is none (``DELIVERY_NOT_FOUND``).
        """
        values = {"project_id": project_id, "delivery_id": delivery_id}
        async with self._database.transaction(project_id=project_id) as connection:
            row = (await connection.execute(_AGAIN, values)).one_or_none()
            if row is None:
                raise NotFoundError(
                    f"There is no delivery {delivery_id}.",
                    reason=Reason.DELIVERY_NOT_FOUND,
                    metadata={"id": delivery_id},
                )
            enabled = {"project_id": project_id, "webhook_id": row["webhook_id"]}
            await connection.execute(_ENABLE, enabled)
        return _delivery(row)

    async def due(self, limit: int) -> Mapping[str, Sequence[str]]:
        """Returns ids of due deliveries by project; the projects are served in turn."""
        return (await self._due.find(limit)).ids

    async def due_of(
        self, project_id: str, limit: int, *, without_webhooks: Iterable[str] = ()
    ) -> Sequence[DueDelivery]:
        """Returns due deliveries of one project: `limit` of the oldest and of the newest.

        Args:
            project_id: The project.
            limit: Maximum number of the oldest, and of the newest.
            without_webhooks: Webhooks to leave out.
        """
        values = {
            "project_id": project_id,
            "limit": limit,
            "without_webhooks": list(without_webhooks),
        }
        async with self._database.transaction(project_id=project_id, read_only=True) as connection:
            rows = await connection.execute(_DUE_OF_PROJECT, values)
            return [DueDelivery(row.id, row.webhook_id) for row in rows]

    async def take(self, project_id: str, delivery_id: str) -> Attempt | None:
        """Takes a delivery for one attempt; None if another gateway has it, or it is done."""
        values = {"project_id": project_id, "delivery_id": delivery_id, "lease_s": LEASE_S}
        async with self._database.transaction(project_id=project_id) as connection:
            row = (await connection.execute(_TAKE, values)).one_or_none()
            if row is None:
                return None
            target = {"project_id": project_id, "webhook_id": row["webhook_id"]}
            webhook = (await connection.execute(_TARGET, target)).one()
        return Attempt(
            _delivery(row), webhook["url"], bytes(webhook["sealed_secret"]), row["timestamp"]
        )

    async def note(
        self, project_id: str, attempt: Attempt, result: AttemptResult, *, spread: float = 1.0
    ) -> None:
        """Stores the result of an attempt, and the time of the next one.

        Args:
            project_id: The project.
            attempt: The attempt; nothing is stored if there was a later one.
            result: Its result.
            spread: Factor of the pause, so that failed deliveries are not retried all at once.
        """
        delivery = attempt.delivery
        over = result.gone or delivery.tries > len(RETRIES_S)
        state = DeliveryState.FAILED if over else DeliveryState.PENDING
        if result.delivered:
            state = DeliveryState.DELIVERED
        pause_s = RETRIES_S[min(delivery.tries, len(RETRIES_S)) - 1] * spread
        values = {
            "project_id": project_id,
            "delivery_id": delivery.id,
            "state": state.value,
            "status": result.status,
            "error": result.error,
            "pause_s": pause_s,
            "attempts": delivery.attempts,
        }
        async with self._database.transaction(project_id=project_id) as connection:
            noted = (await connection.execute(_NOTE, values)).scalar_one_or_none()
            if noted is not None and result.gone:
                webhook = {"project_id": project_id, "webhook_id": delivery.webhook_id}
                await connection.execute(_DISABLE, webhook)

    async def _known(
        self, connection: DatabaseConnection, project_id: str, new: NewWebhook
    ) -> Webhook | None:
        if new.request_id is None:
            return None
        values = {"project_id": project_id, "request_id": new.request_id}
        row = (await connection.execute(_KNOWN, values)).one_or_none()
        if row is None:
            return None
        check_same_request(new.request_id, bytes(row["request_hash"]), new.request_hash)
        return _webhook(row)

    async def _insert(
        self, connection: DatabaseConnection, project_id: str, new: NewWebhook
    ) -> Webhook:
        count = (await connection.execute(_COUNT, {"project_id": project_id})).scalar_one()
        if count >= self._per_project:
            raise ResourceExhaustedError(
                f"The project has {count} webhooks, which is the limit. Delete one that is not "
                "needed.",
                reason=Reason.QUOTA_EXCEEDED,
                metadata={"quota": "webhooks", "limit": self._per_project},
            )
        values = {
            "project_id": project_id,
            "webhook_id": new.id,
            "request_id": new.request_id,
            "request_hash": new.request_hash,
            "url": new.url,
            "events": list(new.events),
            "agent_id": new.agent_id,
            "run_id": new.run_id,
            "sealed_secret": new.sealed_secret,
        }
        return _webhook((await connection.execute(_INSERT, values)).one())


def _webhook(row: Row) -> Webhook:
    return Webhook(
        row["id"],
        row["url"],
        tuple(row["events"]),
        row["agent_id"],
        row["run_id"],
        row["enabled"],
        row["create_time"],
    )


def _delivery(row: Row) -> Delivery:
    return Delivery(
        row["id"],
        row["webhook_id"],
        row["run_id"],
        row["event"],
        DeliveryState(row["state"]),
        row["attempts"],
        row["tries"],
        row["next_time"],
        row["last_status"],
        row["last_error"],
        row["last_attempt_time"],
        row["create_time"],
    )
