"""SQL of the columns of a table, which are declared once as a mapping of names to types."""

from __future__ import annotations

from collections.abc import Mapping


def select_sql(columns: Mapping[str, str], table: str = "") -> str:
    """Returns columns for a SELECT; json as text, which keeps the order of its keys.

    Args:
        columns: PostgreSQL types by name.
        table: The alias of the table in the statement; empty for none.
    """
    prefix = f"{table}." if table else ""
    return ", ".join(
        f"{prefix}{name}::text AS {name}" if type_ == "json" else f"{prefix}{name}"
        for name, type_ in columns.items()
    )


def parameters_sql(columns: Mapping[str, str]) -> str:
    """Returns the parameters of columns, in order; each has the name of its column."""
    return ", ".join(_parameter(name, type_) for name, type_ in columns.items())


def changes_sql(columns: Mapping[str, str]) -> str:
    """Returns the assignments of an UPDATE that sets columns to their parameters."""
    return ", ".join(f"{name} = {_parameter(name, type_)}" for name, type_ in columns.items())


def replacements_sql(columns: Mapping[str, str]) -> str:
    """Returns the assignments of an upsert that sets columns to the values of the new row."""
    return ", ".join(f"{name} = EXCLUDED.{name}" for name in columns)


def _parameter(name: str, type_: str) -> str:
    return f"CAST(:{name} AS {type_})"
