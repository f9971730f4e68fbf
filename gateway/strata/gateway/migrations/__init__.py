"""Schema of the gateway."""

from strata.shared.migrate import RoomMigrations

MIGRATIONS = RoomMigrations(
    room="gateway",
    package="strata.gateway.migrations",
    schema="gateway",
    # It has no project: row-level security binds it to the organisation instead.
    untenanted=frozenset({"organizations"}),
)
