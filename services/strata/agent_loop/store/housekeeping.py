"""Deletes old data: responses of old requests, and journals of finished runs."""

from __future__ import annotations

from datetime import timedelta

from strata.agent_loop.store.request_table import REQUESTS
from strata.shared.db import Database, delete_in_batches, sql
from strata.shared.idempotency.request_table import REQUESTS_KEPT
from strata.shared.polling import keep_polling

_JOURNAL = sql(
    """
    DELETE FROM agent_loop.journal WHERE (project_id, run_id) IN (
        SELECT project_id, run_id FROM agent_loop.journal
        WHERE update_time < now() - CAST(:age AS interval)
        ORDER BY update_time LIMIT :count)
    """
)

_EVERY_S = 3600.0


class Housekeeping:
    """Deletes old data of all projects, with the worker database role.

    Args:
        database: Connects with the worker role.
        journals: How long the journal of a run is kept; longer than any run may last.
        requests: How long a repeated request is recognised.
    """

    def __init__(
        self, database: Database, *, journals: timedelta, requests: timedelta = REQUESTS_KEPT
    ) -> None:
        self._database = database
        self._requests = requests
        self._journals = journals

    async def clean(self) -> int:
        """Deletes expired rows; returns their number."""
        deleted = await REQUESTS.delete_expired(self._database, self._requests)
        return deleted + await delete_in_batches(self._database, _JOURNAL, {"age": self._journals})

    async def keep_cleaning(self) -> None:
        """Cleans up once an hour, until it is cancelled."""
        await keep_polling(self.clean, _EVERY_S, "old data is not deleted")
