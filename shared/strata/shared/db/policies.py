"""SQL for migrations: row-level security policies, the type of a tenant, and grants.

After a transaction that set the tenant, the setting is the empty string and not NULL. The policy
therefore uses NULLIF, so that without a tenant no row is visible.
"""

from __future__ import annotations

import re

TENANT_SETTING = "strata.project_id"
SHARED_SCHEMA = "strata"
"""The schema of what all services share; it has no tables."""
TENANT_TYPE = f"{SHARED_SCHEMA}.tenant"
"""The type of the parameter that binds a statement outside of a transaction block to its tenant.

PostgreSQL converts the parameters of a statement before it runs it, and checks the constraint of a
domain meanwhile. That of this one sets the tenant, until the end of the statement's own
transaction. Without such a parameter there is no tenant, and no row is visible.
"""
_NAME = re.compile(r"[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)?")


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a plain, lower-case SQL name")
    return name


def tenant_type_sql() -> str:
    """Returns the statement that creates the type of a tenant, see `TENANT_TYPE`."""
    return (
        f'CREATE DOMAIN {TENANT_TYPE} AS text COLLATE "C"'
        f" CHECK (set_config('{TENANT_SETTING}', VALUE, true) IS NOT NULL)"
    )


def tenant_policy_sql(table: str) -> str:
    """Returns statements that enforce tenant isolation on a table, also for its owner.

    The table needs a column `project_id text COLLATE "C" NOT NULL`, first in its key.

    Args:
        table: The table, with or without its schema.
    """
    table = _checked(table)
    condition = f"project_id = NULLIF(current_setting('{TENANT_SETTING}', true), '')"
    return (
        f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;\n"
        f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY;\n"
        f"CREATE POLICY tenant ON {table} USING ({condition}) WITH CHECK ({condition});"
    )


def worker_policy_sql(table: str, service: str, *, using: str = "true") -> str:
    """Returns a policy that lets the service's worker role reach rows of every tenant.

    A policy selects rows; `grant_sql` or `grant_columns_sql` grant statements and columns.

    Args:
        table: The table, with or without its schema.
        service: The service whose worker role is meant.
        using: Which rows, as an SQL condition.
    """
    role = f"strata_{_checked(service)}_worker"
    return (
        f"CREATE POLICY worker ON {_checked(table)} TO {role} USING ({using}) WITH CHECK ({using});"
    )


def grant_sql(privileges: str, table: str, role: str) -> str:
    """Returns `GRANT privileges ON table TO role`, such as `SELECT, UPDATE`."""
    if not re.fullmatch(r"[A-Z]+(, [A-Z]+)*", privileges):
        raise ValueError(f"{privileges!r} is not a list of privileges")
    return f"GRANT {privileges} ON {_checked(table)} TO {_checked(role)};"


def grant_columns_sql(privilege: str, columns: list[str], table: str, role: str) -> str:
    """Returns a grant of one privilege on some columns only."""
    if privilege not in ("SELECT", "INSERT", "UPDATE", "REFERENCES"):
        raise ValueError(f"{privilege!r} cannot be granted by column")
    listed = ", ".join(_checked(column) for column in columns)
    return f"GRANT {privilege} ({listed}) ON {_checked(table)} TO {_checked(role)};"
