"""SQL for migrations is made from plain names only."""

from __future__ import annotations

import pytest

from strata.shared.db import (
    grant_columns_sql,
    grant_sql,
    tenant_policy_sql,
    worker_policy_sql,
)


def test_a_policy_is_enabled_forced_and_applies_to_reads_and_writes() -> None:
    sql = tenant_policy_sql("recall.messages")

    for part in ("ENABLE ROW LEVEL SECURITY", "FORCE ROW LEVEL SECURITY", "USING", "WITH CHECK"):
        assert part in sql
    assert sql.count("NULLIF(current_setting('strata.project_id', true), '')") == 2


@pytest.mark.parametrize("name", ["", "a b", "a;b", "A", "a.b.c", "a'", "1a"])
def test_a_name_that_is_not_plain_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="SQL name"):
        tenant_policy_sql(name)
    with pytest.raises(ValueError, match="SQL name"):
        worker_policy_sql(name, "recall")
    with pytest.raises(ValueError, match="SQL name"):
        grant_sql("SELECT", name, "strata_recall")
    with pytest.raises(ValueError, match="SQL name"):
        grant_sql("SELECT", "messages", name)
    with pytest.raises(ValueError, match="SQL name"):
        grant_columns_sql("SELECT", [name], "messages", "strata_recall")


@pytest.mark.parametrize("privileges", ["", "select", "ALL; DROP", "SELECT,UPDATE"])
def test_invalid_privileges_are_refused(privileges: str) -> None:
    with pytest.raises(ValueError, match="privileges"):
        grant_sql(privileges, "messages", "strata_recall")
    with pytest.raises(ValueError, match="by column"):
        grant_columns_sql(privileges, ["a"], "messages", "strata_recall")


def test_grants_have_the_expected_sql() -> None:
    assert grant_sql("SELECT, UPDATE", "runs", "w") == "GRANT SELECT, UPDATE ON runs TO w;"
    assert (
        grant_columns_sql("UPDATE", ["owner", "fence"], "runs", "w")
        == "GRANT UPDATE (owner, fence) ON runs TO w;"
    )
