"""The SQL statement that finds the edits of a selection, with conditions that fit an index."""

from __future__ import annotations

from typing import Any

from sqlalchemy import TextClause, text

from strata.core_memory.domain.selection import Selection

_CONDITIONS = {
    "block_id": "block_id = :block_id",
    "run_id": "run_id = :run_id",
    "agent_id": "agent_id = :agent_id",
    "since": "create_time >= CAST(:since AS timestamptz)",
}


def edits_statement(selection: Selection) -> TextClause:
    """Returns the statement that lists the matching versions, newest first in each block."""
    conditions = [_CONDITIONS[name] for name in edits_parameters(selection)]
    return text(
        "SELECT block_id, revision FROM core_memory.block_versions WHERE "
        + " AND ".join(["project_id = :project", *conditions])
        + " ORDER BY block_id, revision DESC"
    )


def edits_parameters(selection: Selection) -> dict[str, Any]:
    """Returns the parameters of the statement, except the project."""
    values = {name: getattr(selection, name) for name in _CONDITIONS}
    return {name: value for name, value in values.items() if value}
