"""Records the address at which other gateways reach the gateway that holds a run.

Revision ID: 0007
"""

from alembic import op

from strata.shared.db import grant_columns_sql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the address; runs of a gateway without one are read only from the database."""
    op.execute("ALTER TABLE gateway.runs ADD COLUMN owner_address text NOT NULL DEFAULT ''")
    # A frequent query finds which of the followed runs have moved, over all projects.
    read = ["owner_address", "last_sequence"]
    op.execute(grant_columns_sql("SELECT", read, "gateway.runs", "strata_gateway_worker"))
    op.execute(
        grant_columns_sql("UPDATE", ["owner_address"], "gateway.runs", "strata_gateway_worker")
    )


def downgrade() -> None:
    """Drops the address."""
    op.execute("REVOKE SELECT (last_sequence) ON gateway.runs FROM strata_gateway_worker")
    op.execute("ALTER TABLE gateway.runs DROP COLUMN owner_address")
