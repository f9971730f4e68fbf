"""Runs and schedules of projects that are named by their id, wherever they are placed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from strata.gateway.runs.domain.runs import RunStore, UsageSum
from strata.gateway.schedules.domain import ScheduleStore
from strata.shared.partitions import not_configured


@dataclass(frozen=True, slots=True)
class RunsOfPartition:
    """The runs and schedules of the projects of one partition.

    Attributes:
        runs: The runs.
        schedules: The schedules.
        cancel_run: Cancels a run, by the ids of project and run.
    """

    runs: RunStore
    schedules: ScheduleStore
    cancel_run: Callable[[str, str], Awaitable[object]]


class RunsOfProjects:
    """Finds the runs and schedules of projects.

    Args:
        partitions: The runs and schedules of each partition, by its name.
        partition_of: Returns the partition of a project.
    """

    def __init__(
        self,
        partitions: Mapping[str, RunsOfPartition],
        partition_of: Callable[[str], Awaitable[str]],
    ) -> None:
        self._partitions = partitions
        self._partition_of = partition_of

    async def of(self, project_id: str) -> RunsOfPartition:
        """Returns the runs and schedules of the partition of a project.

        Raises:
            FailedPreconditionError: The gateway has no database for its partition
                (``PARTITION_NOT_CONFIGURED``).
        """
        partition = await self._partition_of(project_id)
        if partition not in self._partitions:
            raise not_configured(partition)
        return self._partitions[partition]

    async def usage(
        self, project_ids: Sequence[str], start: datetime, end: datetime
    ) -> Mapping[str, UsageSum]:
        """Sums the runs that ended in a time range by project; see `RunStore.usage_of_projects`."""
        sums: dict[str, UsageSum] = {}
        for partition in self._partitions.values():
            # A project has rows on one partition only.
            sums |= await partition.runs.usage_of_projects(project_ids, start, end)
        return sums
