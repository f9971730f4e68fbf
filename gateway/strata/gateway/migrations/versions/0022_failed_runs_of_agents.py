"""Failed and cancelled runs of one agent or conversation, and marks by memory agent, have indexes.

Revision ID: 0022
"""

from alembic import op

from strata.shared.migrate.indexes import create_index_concurrently

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

_INDEXES = {
    "runs_not_completed_of_agent": (
        "gateway.runs (project_id, agent_id, state, id) WHERE state IN ('FAILED', 'CANCELLED')"
    ),
    "runs_not_completed_of_conversation": (
        "gateway.runs (project_id, conversation_id, state, id)"
        " WHERE state IN ('FAILED', 'CANCELLED')"
    ),
    "memory_agents_by_memory_agent": (
        "gateway.memory_agents (project_id, memory_agent_id, agent_id, conversation_id)"
    ),
}


def upgrade() -> None:
    """Creates the indexes; runs that complete have no entry in the first two."""
    for name, definition in _INDEXES.items():
        create_index_concurrently(name, definition, schema="gateway")


def downgrade() -> None:
    """Drops the indexes: the earlier release reads all runs, or all marks, of a project instead."""
    for name in _INDEXES:
        op.execute(f"DROP INDEX gateway.{name}")
