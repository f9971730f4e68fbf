"""Spans of statements."""

from __future__ import annotations

import pytest

from span_records import SpanRecorder, traced
from strata.gateway.runs.store import statements as run_statements
from strata.shared.db.statement_spans import statement_span, statement_summary


@pytest.mark.parametrize(
    ("statement", "summary"),
    [
        ("SELECT id FROM recall.messages WHERE id = :id", "SELECT recall.messages"),
        (
            "SELECT a FROM recall.windows w JOIN recall.messages m ON true",
            "SELECT recall.windows",
        ),
        ("insert into example.notes values (1)", "INSERT example.notes"),
        ("DELETE FROM example.notes\n WHERE x", "DELETE example.notes"),
        ("SELECT 1 FROM example.notes FOR UPDATE", "SELECT example.notes"),
        (
            "-- FROM a.a\nWITH w AS (DELETE FROM a.b) INSERT INTO d.e ON CONFLICT DO UPDATE SET f",
            "DELETE a.b INSERT d.e",
        ),
        (
            "UPDATE a.a; UPDATE a.a; UPDATE a.b; UPDATE a.c; UPDATE a.d",
            "UPDATE a.a UPDATE a.b UPDATE a.c",
        ),
        ("COMMIT", "COMMIT"),
        ("SELECT set_config($1, $2, true)", "SELECT"),
        ("", "SQL"),
    ],
)
def test_the_name_of_a_statement_is_its_changes_or_its_first_table(
    statement: str, summary: str
) -> None:
    assert statement_summary(statement) == summary


def test_a_large_statement_has_a_short_name() -> None:
    summary = statement_summary(run_statements.ACCEPT.text)
    assert summary == "UPDATE gateway.runs INSERT gateway.runs UPDATE gateway.approvals"


def test_a_statement_is_a_span_with_operation_and_tables() -> None:
    recorder = SpanRecorder()
    with traced(recorder) as call, statement_span(call, "SELECT 1 FROM recall.messages"):
        pass
    span = recorder.named("SELECT recall.messages")
    assert span.parent_id == call.span_id
    assert span.attributes == {
        "db.system.name": "postgresql",
        "db.operation.name": "SELECT",
        "db.query.summary": "SELECT recall.messages",
    }


def test_nothing_is_recorded_without_a_span() -> None:
    with statement_span(None, "SELECT 1"):
        pass
