"""Schema of the archival service."""

from strata.shared.migrate import ServiceMigrations

MIGRATIONS = ServiceMigrations(
    service="archival", package="strata.archival.migrations", schema="archival"
)
