"""SQL statements with named parameters."""

from __future__ import annotations

import pytest

from strata.shared.db import sql


@pytest.mark.parametrize(
    ("source", "text", "parameters"),
    [
        ("SELECT :a, :b, :a", "SELECT $1, $2, $1", ("a", "b")),
        ("SELECT CAST(:a1 AS text[])[1]", "SELECT CAST($1 AS text[])[1]", ("a1",)),
        ("SELECT '{}'::jsonb, :a", "SELECT '{}'::jsonb, $1", ("a",)),
        (r"SELECT ARRAY[1, 2][1\:2], :a", "SELECT ARRAY[1, 2][1:2], $1", ("a",)),
        ("SELECT make_interval(secs => :a)", "SELECT make_interval(secs => $1)", ("a",)),
        ("SELECT '10:30', :a", "SELECT '10:30', $1", ("a",)),
        ("SELECT x[:a:2]", "SELECT x[:a:2]", ()),
        ("SELECT (:é)", "SELECT ($1)", ("é",)),
        ("", "", ()),
    ],
)
def test_parameters_are_numbered(source: str, text: str, parameters: tuple[str, ...]) -> None:
    statement = sql(source)
    assert statement.text == text
    assert statement.parameters == parameters


def test_equal_texts_are_one_statement_which_a_connection_prepares_once() -> None:
    assert sql("SELECT :a") is sql("SELECT " + ":a")
    assert sql("SELECT :a").of_tenant("a") is sql("SELECT :a").of_tenant("a")


def test_values_come_in_the_order_of_the_numbers() -> None:
    statement = sql("SELECT :b, :a, :b")
    assert statement.arguments({"a": 1, "b": 2, "c": 3}) == [2, 1]
    with pytest.raises(ValueError, match="the parameter 'b'"):
        statement.arguments({"a": 1})


def test_the_parameter_of_a_tenant_has_its_type_everywhere() -> None:
    statement = sql("SELECT :project, :projects WHERE x = :project").of_tenant("project")
    assert statement.text == "SELECT $1::strata.tenant, $2 WHERE x = $1::strata.tenant"
    assert statement.parameters == ("project", "projects")
    with pytest.raises(ValueError, match="no parameter 'tenant'"):
        sql("SELECT :project").of_tenant("tenant")
