"""The schema of core memory."""

from strata.shared.migrate import RoomMigrations

MIGRATIONS = RoomMigrations(
    room="core_memory", package="strata.core_memory.migrations", schema="core_memory"
)
