"""Claims queued runs from one project after another.

Revision ID: 0008
"""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Orders the queue by project."""
    op.execute("DROP INDEX gateway.runs_ready")
    op.execute(
        "CREATE INDEX runs_ready ON gateway.runs (project_id, run_at) WHERE state = 'QUEUED'"
    )


def downgrade() -> None:
    """Orders the queue by time only."""
    op.execute("DROP INDEX gateway.runs_ready")
    op.execute("CREATE INDEX runs_ready ON gateway.runs (run_at) WHERE state = 'QUEUED'")
