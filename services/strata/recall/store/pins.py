"""Stores pins of messages in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from strata.protocol.errors import FieldViolation, InvalidArgumentError
from strata.recall.domain.messages import Message
from strata.recall.domain.pins import with_added
from strata.recall.store.messages import missing
from strata.recall.store.rows import BY_ID, BY_RUN, to_message
from strata.shared.context import current_project
from strata.shared.db import Database, DatabaseConnection, sql
from strata.shared.messages import MessageRole

_LOCK = sql(
    "SELECT * FROM recall.windows"
    " WHERE project_id = :project AND conversation_id = :conversation FOR UPDATE"
)
_PIN = sql(
    "UPDATE recall.messages SET pinned = :pinned"
    " WHERE project_id = :project AND id = :id AND pinned <> :pinned"
)
_REARRANGE = sql(
    "UPDATE recall.windows SET message_ids = CAST(:ids AS text[]), revision = revision + 1,"
    " rewrite_revision = revision + 1,"
    " metadata_stale = metadata_stale OR :stale"
    " WHERE project_id = :project AND conversation_id = :conversation"
)
_IN_VIEW = "must not be a system message or a summary: these are shown without a pin"
_UNPINNABLE = {
    MessageRole.SYSTEM: _IN_VIEW,
    MessageRole.SUMMARY: _IN_VIEW,
    # A pinned request could stay in a window without the returns of its calls, and would then count
    # as open again.
    MessageRole.APPROVAL: (
        "must not be an approval message, which no model is shown: pin the reply that is stored"
        " with the returns of the calls"
    ),
}


class PostgresPinStore:
    """Implements `PinStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def set(self, message_id: str, *, pinned: bool) -> Message:
        """Pins or unpins a message.

        Locks the row of the window before it changes the message, and increases the window's
        revision, so that a compaction that was planned without the pin is rejected.
        """
        project = current_project()
        async with self._database.transaction() as connection:
            message = await self._pinnable(connection, project, message_id, pinned=pinned)
            locked = await connection.execute(
                _LOCK, {"project": project, "conversation": message.conversation_id}
            )
            row = locked.one_or_none()
            if row is None:
                raise missing(message_id)
            # Read again: retention may have deleted it before the lock was taken.
            message = await self._pinnable(connection, project, message_id, pinned=pinned)
            ids = list(row.message_ids)
            if pinned and message_id not in ids:
                ids = await self._with_step(connection, project, ids, message)
            changed = await connection.execute(
                _PIN, {"project": project, "id": message_id, "pinned": pinned}
            )
            if changed.rowcount or ids != list(row.message_ids):
                await connection.execute(
                    _REARRANGE,
                    {
                        "project": project,
                        "conversation": message.conversation_id,
                        "ids": ids,
                        "stale": len(ids) != len(row.message_ids),
                    },
                )
            return replace(message, pinned=pinned)

    async def _pinnable(
        self, connection: DatabaseConnection, project: str, message_id: str, *, pinned: bool
    ) -> Message:
        result = await connection.execute(BY_ID, {"project": project, "ids": [message_id]})
        row = result.one_or_none()
        if row is None:
            raise missing(message_id)
        message = to_message(row)
        problem = _UNPINNABLE.get(message.role)
        if problem is not None and (pinned or message.role is not MessageRole.APPROVAL):
            raise InvalidArgumentError(
                f"message_id {problem}.", violations=[FieldViolation("message_id", problem)]
            )
        return message

    async def _with_step(
        self, connection: DatabaseConnection, project: str, ids: Sequence[str], message: Message
    ) -> list[str]:
        """Returns the ids of a window with a message and the rest of its step added."""
        of_step: list[Message] = [message]
        if message.step > 0:
            of_run = await connection.execute(
                BY_RUN,
                {
                    "project": project,
                    "run": message.run_id,
                    "conversation": message.conversation_id,
                },
            )
            of_step = [m for m in map(to_message, of_run) if m.step == message.step]
        rows = await connection.execute(BY_ID, {"project": project, "ids": list(ids)})
        return [
            window_message.id
            for window_message in with_added([to_message(row) for row in rows], of_step)
        ]
