"""Schema of the recall room."""

from strata.shared.migrate import RoomMigrations

MIGRATIONS = RoomMigrations(room="recall", package="strata.recall.migrations", schema="recall")
