"""Spans of SQL statements: what a statement does to which tables, without its values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from strata.shared.tracing.spans import Attributes, Span, SpanKind

_COMMENT = re.compile(r"--[^\n]*")
# Our tables are named with their schema; a name without a schema belongs to a subquery.
_ACTION = re.compile(
    r"\b(?P<action>INSERT\s+INTO|UPDATE(?:\s+ONLY)?|DELETE\s+FROM|FROM|JOIN)\s+"
    r"(?P<table>[a-z_]+\.[a-z_]+)\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"[A-Za-z]+")
_MOST_ACTIONS = 3


@lru_cache(maxsize=1024)
def statement_summary(statement: str) -> str:
    """Returns what a statement does: ``UPDATE gateway.runs INSERT gateway.run_events``.

    Only the changes are named; for a statement without changes, the first table that it reads.
    """
    text = _COMMENT.sub("", statement)
    changes: list[str] = []
    reads: list[str] = []
    for match in _ACTION.finditer(text):
        action, table = match["action"].split()[0].upper(), match["table"].lower()
        if action in {"FROM", "JOIN"}:
            reads.append(f"SELECT {table}")
        else:
            changes.append(f"{action} {table}")
    actions = list(dict.fromkeys(changes or reads[:1]))[:_MOST_ACTIONS]
    if actions:
        return " ".join(actions)
    first = _WORD.search(text)
    return first[0].upper() if first is not None else "SQL"


@lru_cache(maxsize=1024)
def _attributes(summary: str) -> Attributes:
    return {
        "db.system.name": "postgresql",
        "db.operation.name": summary.partition(" ")[0],
        "db.query.summary": summary,
    }


@contextmanager
def statement_span(parent: Span | None, statement: str) -> Iterator[None]:
    """Records the block, which runs a statement, as a span.

    Args:
        parent: The span of the work that needs the statement; None to record nothing.
        statement: Its text. The values are parameters, and so not in it.
    """
    if parent is None:
        yield
        return
    summary = statement_summary(statement)
    span = parent.child(summary, SpanKind.CLIENT, _attributes(summary))
    try:
        yield
    except BaseException as error:
        span.fail(_sqlstate(error))
        raise
    finally:
        span.end()


def _sqlstate(error: BaseException) -> str:
    """Returns the SQLSTATE of an error, or the name of its class."""
    cause: object = getattr(error, "sqlstate", None)
    return cause if isinstance(cause, str) else type(error).__name__
