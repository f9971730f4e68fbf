"""Errors of the driver that show that a connection was lost before a statement began."""

from __future__ import annotations

import asyncpg
import pytest

from strata.shared.db.errors import is_lost_connection, was_not_sent


def _broken_while_writing(cause: Exception | None) -> asyncpg.ConnectionDoesNotExistError:
    error = asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "not_sent"),
    [
        (asyncpg.IdleSessionTimeoutError("idle"), True),
        (_broken_while_writing(asyncpg.IdleSessionTimeoutError("idle")), True),
        (_broken_while_writing(asyncpg.AdminShutdownError("shutdown")), False),
        (_broken_while_writing(None), False),
    ],
)
def test_statement_was_not_sent_only_if_the_session_waited_for_it(
    error: Exception, not_sent: bool
) -> None:
    assert is_lost_connection(error)
    assert was_not_sent(error) is not_sent
