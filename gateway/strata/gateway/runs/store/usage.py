"""The usage of runs, and of model calls outside of runs, in PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from strata.gateway.runs.domain.runs import UsageSum
from strata.gateway.runs.store.base import RunTables
from strata.gateway.runs.store.rows import usage_of
from strata.shared.call_usage import CallUsage
from strata.shared.db import Row, sql
from strata.shared.usage import COUNTS, FIELDS

_SUMS = ", ".join(
    [
        "coalesce(sum(run_count), 0) AS run_count",
        "coalesce(sum(step_count), 0) AS step_count",
        *(f"coalesce(sum({name}), 0) AS {name}" for name in COUNTS),
        "coalesce(bool_or(usage_estimated), false) AS usage_estimated",
    ]
)

_COLUMNS = f"step_count, {', '.join(COUNTS)}, usage_estimated"


def _counted(condition: str) -> str:
    """Returns SQL of the counted rows from `start` to `end`, for a condition on the project."""
    # Usage of a group run is the usage of the runs of its members, which are counted themselves.
    return f"""(
        SELECT project_id, finish_time AS time, 1 AS run_count, {_COLUMNS} FROM gateway.runs
         WHERE {condition} AND finish_time >= :start AND finish_time < :end
           AND conversation_id NOT LIKE 'group-%'
        UNION ALL
        SELECT project_id, create_time, 0, {_COLUMNS} FROM gateway.usage_outside_runs
         WHERE {condition} AND create_time >= :start AND create_time < :end
    ) counted"""


_OF_PROJECT = "project_id = :project_id AND (CAST(:agent_id AS text) = '' OR agent_id = :agent_id)"
_USAGE = sql(f"SELECT {_SUMS} FROM {_counted(_OF_PROJECT)}")
# Parts are numbered from 1.
_USAGE_SERIES = sql(f"""
SELECT width_bucket(time, CAST(:starts AS timestamptz[])) AS part, {_SUMS}
  FROM {_counted(_OF_PROJECT)}
 GROUP BY part
""")

_USAGE_OF_PROJECTS = sql(f"""
SELECT project_id, {_SUMS}
  FROM {_counted("project_id = ANY(CAST(:project_ids AS text[]))")}
 GROUP BY project_id
""")
_ADD = sql(f"""
INSERT INTO gateway.usage_outside_runs (project_id, id, agent_id, {_COLUMNS})
VALUES (:project_id, :id, :agent_id, :step_count, {", ".join(f":{name}" for name in COUNTS)},
        :estimated)
ON CONFLICT DO NOTHING
""")


class PostgresUsage(RunTables):
    """Sums the usage of ended runs and of model calls outside of runs."""

    async def add_usage(
        self, project_id: str, usage_id: str, agent_id: str, spent: CallUsage
    ) -> None:
        """See `RunStore.add_usage`."""
        values = {
            "project_id": project_id,
            "id": usage_id,
            "agent_id": agent_id,
            "step_count": spent.model_calls,
            **{name: getattr(spent.usage, name) for name in FIELDS},
        }
        await self._database.execute(_ADD, values, project_id=project_id)

    async def usage(
        self, project_id: str, start: datetime, end: datetime, agent_id: str
    ) -> UsageSum:
        """See `RunStore.usage`."""
        values = {"project_id": project_id, "start": start, "end": end, "agent_id": agent_id}
        return _usage_sum((await self._read(_USAGE, values)).one())

    async def usage_series(
        self, project_id: str, starts: Sequence[datetime], end: datetime, agent_id: str
    ) -> Sequence[UsageSum]:
        """See `RunStore.usage_series`."""
        values = {
            "project_id": project_id,
            "start": starts[0],
            "starts": list(starts),
            "end": end,
            "agent_id": agent_id,
        }
        rows = (await self._read(_USAGE_SERIES, values)).all()
        sums = {row["part"]: _usage_sum(row) for row in rows}
        return [sums.get(number, UsageSum()) for number in range(1, len(starts) + 1)]

    async def usage_of_projects(
        self, project_ids: Sequence[str], start: datetime, end: datetime
    ) -> Mapping[str, UsageSum]:
        """See `RunStore.usage_of_projects`."""
        values = {"project_ids": list(project_ids), "start": start, "end": end}
        rows = await self._worker.system_query(_USAGE_OF_PROJECTS, values)
        return {row.project_id: _usage_sum(row) for row in rows}


def _usage_sum(row: Row) -> UsageSum:
    return UsageSum(int(row["run_count"]), int(row["step_count"]), usage_of(row))
