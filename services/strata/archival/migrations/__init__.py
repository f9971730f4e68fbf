"""Schema of the archival room."""

from strata.shared.migrate import RoomMigrations

MIGRATIONS = RoomMigrations(
    room="archival", package="strata.archival.migrations", schema="archival"
)
