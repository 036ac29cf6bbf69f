"""When a GPU was heard of last, and the values of the grid."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column and the table."""
    op.add_column("gpus", sa.Column("heard_s", sa.Double()))
    op.create_table(
        "grid_quarters",
        sa.Column("starts_s", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("zone", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("unit", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("starts_s", "zone", "kind", name="pk_grid_quarters"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    """Drop both."""
    op.drop_table("grid_quarters")
    op.drop_column("gpus", "heard_s")
