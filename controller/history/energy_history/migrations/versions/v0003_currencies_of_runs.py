"""The currencies that the costs of a run are in."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("runs", sa.Column("currency", sa.Text()))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("runs", "currency")
