"""Schema of the tool-execution room."""

from strata.shared.migrate import RoomMigrations

MIGRATIONS = RoomMigrations(
    room="tool_execution", package="strata.tool_execution.migrations", schema="tool_execution"
)
