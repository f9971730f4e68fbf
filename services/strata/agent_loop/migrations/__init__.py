"""Schema of the agent loop."""

from strata.shared.migrate import RoomMigrations

MIGRATIONS = RoomMigrations(
    room="agent_loop", package="strata.agent_loop.migrations", schema="agent_loop"
)
