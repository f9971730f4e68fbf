"""Database roles, schema and migrations of a service: `strata migrate` and the check at start."""

from strata.shared.migrate.passwords import check_password, is_verified_by, scram_verifier
from strata.shared.migrate.roles import RolePasswords, ServiceRoles
from strata.shared.migrate.service import ServiceMigrations

__all__ = [
    "RolePasswords",
    "ServiceMigrations",
    "ServiceRoles",
    "check_password",
    "is_verified_by",
    "scram_verifier",
]
