"""The schema of core memory."""

from strata.shared.migrate import ServiceMigrations

MIGRATIONS = ServiceMigrations(
    service="core_memory", package="strata.core_memory.migrations", schema="core_memory"
)
