"""Schema of the gateway."""

from strata.shared.migrate import ServiceMigrations

MIGRATIONS = ServiceMigrations(
    service="gateway",
    package="strata.gateway.migrations",
    schema="gateway",
    # They have no project: row-level security binds them to the organization instead.
    untenanted=frozenset({"organizations", "organization_keys"}),
)
