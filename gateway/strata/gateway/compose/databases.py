"""The database connections of each partition."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass

from strata.gateway.migrations import MIGRATIONS
from strata.gateway.settings import GatewaySettings
from strata.shared.db import Database
from strata.shared.db.opening import open_database, open_worker_database
from strata.shared.partitioned_service import settings_by_partition
from strata.shared.service import Wiring
from strata.shared.telemetry import Telemetry

_SERVICE = "gateway"


@dataclass(frozen=True, slots=True)
class PartitionDatabases:
    """A partition with open databases.

    Attributes:
        name: Name of the partition.
        database: Connections with the service role; each transaction is limited to one project.
        worker: Connections with the worker role, for work of all projects of the partition.
        telemetry: Registry of the metrics, which have a label for the partition if there are
            several.
    """

    name: str
    database: Database
    worker: Database
    telemetry: Telemetry


async def open_databases(
    settings: GatewaySettings, wiring: Wiring, stack: AsyncExitStack
) -> dict[str, PartitionDatabases]:
    """Opens the databases of all partitions; returns them by the name of the partition.

    Raises:
        FailedPreconditionError: A database is not migrated (``SCHEMA_OUTDATED``).
        UnavailableError: A database cannot be reached.
    """
    has_several = len(settings.partitions) > 1
    databases = {}
    for name, partition_settings in settings_by_partition(settings).items():
        await MIGRATIONS.check(partition_settings.database_url, name)
        telemetry = wiring.telemetry.of_partition(name) if has_several else wiring.telemetry
        database = open_database(partition_settings, _SERVICE, telemetry, stack)
        worker = open_worker_database(
            partition_settings, _SERVICE, telemetry, stack, pool_size=settings.worker_pool_size
        )
        databases[name] = PartitionDatabases(name, database, worker, telemetry)
    return databases
