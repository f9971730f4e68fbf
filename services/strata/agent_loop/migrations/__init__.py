"""Schema of the agent loop."""

from strata.shared.migrate import ServiceMigrations

MIGRATIONS = ServiceMigrations(
    service="agent_loop", package="strata.agent_loop.migrations", schema="agent_loop"
)
