"""Columns of runs and events that are in no condition have no statistics.

Revision ID: 0025
"""

from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

# No statement compares, sorts or groups by them, so no plan depends on their statistics.
_WITHOUT_CONDITIONS = {
    "runs": (
        "scopes",
        "payload",
        "payload_hash",
        "max_steps",
        "error_reason",
        "error_message",
        "error_retryable",
        "step_count",
        "prompt_tokens",
        "completion_tokens",
        "total_tokens",
        "cached_input_tokens",
        "cache_write_tokens",
        "reasoning_tokens",
        "usage_estimated",
        "taint",
        "owner_address",
    ),
    "run_events": ("payload",),
}


def upgrade() -> None:
    """Changes settings of columns."""
    _set_statistics(0)


def downgrade() -> None:
    """Restores the defaults."""
    _set_statistics(-1)


def _set_statistics(target: int) -> None:
    for table, columns in _WITHOUT_CONDITIONS.items():
        changes = ", ".join(f"ALTER COLUMN {column} SET STATISTICS {target}" for column in columns)
        op.execute(f"ALTER TABLE gateway.{table} {changes}")
