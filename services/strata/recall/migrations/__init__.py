"""Schema of the recall service."""

from strata.shared.migrate import ServiceMigrations

MIGRATIONS = ServiceMigrations(
    service="recall", package="strata.recall.migrations", schema="recall"
)
