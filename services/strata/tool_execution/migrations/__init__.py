"""Schema of the tool-execution service."""

from strata.shared.migrate import ServiceMigrations

MIGRATIONS = ServiceMigrations(
    service="tool_execution", package="strata.tool_execution.migrations", schema="tool_execution"
)
