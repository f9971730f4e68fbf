"""Statements whose result columns are named beforehand."""

from __future__ import annotations

import pytest
from sqlalchemy.dialects import postgresql

from strata.shared.db import text_with_columns
from strata.shared.db.statements import column_names


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ("id", ["id"]),
        ("id, name,\n    a.revision", ["id", "name", "revision"]),
        ("extract(epoch FROM now() - create_time) AS age_s, b.id", ["age_s", "id"]),
    ],
)
def test_names_are_those_of_the_result(columns: str, names: list[str]) -> None:
    assert column_names(columns) == names
    assert list(text_with_columns("SELECT 1", columns).selected_columns.keys()) == names


@pytest.mark.parametrize("columns", ["id, *", "m.*", "id, count(*)", "id, coalesce(a, b) AS c"])
def test_columns_without_fixed_names_are_refused(columns: str) -> None:
    with pytest.raises(ValueError, match="without a name"):
        text_with_columns("SELECT 1", columns)


def test_repeated_column_names_are_refused() -> None:
    with pytest.raises(ValueError, match="same name"):
        text_with_columns("SELECT 1", "a.id, b.id")


def test_the_statement_is_sent_unchanged() -> None:
    sql = "SELECT id, name FROM notes WHERE id = :id"
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    compiled = text_with_columns(sql, "id, name").compile(dialect=dialect)
    assert str(compiled) == sql.replace(":id", "%(id)s")
