"""Of which GPUs a cost bound is; of those before nobody knows."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    op.add_column("trials", sa.Column("bound_gpu_model", sa.Text()))
    op.add_column("trials", sa.Column("bound_n_gpus", sa.BigInteger()))


def downgrade() -> None:
    """Drop them."""
    for column in ("bound_n_gpus", "bound_gpu_model"):
        op.drop_column("trials", column)
