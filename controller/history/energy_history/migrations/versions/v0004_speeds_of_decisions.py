"""The speed of the run after a change of its power limit, as a share of full speed."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("decisions", sa.Column("speed_ratio", sa.Double()))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("decisions", "speed_ratio")
