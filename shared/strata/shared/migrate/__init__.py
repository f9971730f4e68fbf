"""Schema, roles and migrations of one room, made by `strata migrate` and checked at start."""

from strata.shared.migrate.passwords import scram_verifier
from strata.shared.migrate.roles import RolePasswords, RoomRoles
from strata.shared.migrate.room import RoomMigrations

__all__ = ["RolePasswords", "RoomMigrations", "RoomRoles", "scram_verifier"]
