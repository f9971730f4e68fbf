"""Query plans of recorded statements."""

from __future__ import annotations

import re
from collections.abc import Mapping

from strata.shared.db import Database, SqlStatement


async def plan_of(database: Database, statement: str, *, elements: int = 1) -> str:
    """Returns the plan of a recorded statement, with a value for each parameter.

    A parameter is a number where the statement casts it to ``bigint``, else a text.

    Args:
        database: Where the statement is planned.
        statement: With numbered parameters.
        elements: Number of elements of each array.
    """
    array = f"'{{{','.join(f'x{number}' for number in range(elements))}}}'::text[]"
    arrays = re.sub(r"CAST\(\$\d+(::\w+)? AS text\[\]\)", array, statement)
    numbers = re.sub(r"CAST\(\$\d+(::\w+)? AS bigint\)", "1", arrays)
    numbers = re.sub(r"CAST\(\$\d+(::\w+)?(\[\])? AS bigint\[\]\)", "'{1}'::bigint[]", numbers)
    explain = "EXPLAIN " + re.sub(r"\$\d+(::[\w.]+)?", "'x'", numbers)
    async with database.transaction(read_only=True) as connection:
        return "\n".join(row[0] for row in await connection.driver.fetch(explain))


async def generic_plan_of(database: Database, statement: str) -> str:
    """Returns the plan of a recorded statement that holds for all values of its parameters.

    PostgreSQL may use it for a prepared statement that has run five times.

    Args:
        database: Where the statement is planned.
        statement: With numbered parameters.
    """
    values = ", ".join(["NULL"] * len(set(re.findall(r"\$\d+", statement))))
    async with database.transaction() as connection:
        await connection.driver.fetch("SET LOCAL plan_cache_mode = force_generic_plan")
        await connection.driver.fetch(f"PREPARE explained AS {statement}")
        plan = await connection.driver.fetch(f"EXPLAIN EXECUTE explained({values})")
        await connection.driver.fetch("DEALLOCATE explained")
    return "\n".join(row[0] for row in plan)


def with_values(statement: SqlStatement, values: Mapping[str, str]) -> str:
    """Returns the text of a statement with values in place of its parameters.

    Args:
        statement: The statement.
        values: The values as SQL, by the names of the parameters.
    """
    return re.sub(
        r"\$(\d+)", lambda match: values[statement.parameters[int(match[1]) - 1]], statement.text
    )
