"""The currency of what a GPU cost in each quarter-hour: one that changes costs no other quarter-hour its own."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Move the currency of each GPU to its quarter-hours; of one that had several it is not known when."""
    op.add_column("gpu_quarters", sa.Column("currency", sa.Text()))
    of_gpu = "SELECT gpus.currency FROM gpus WHERE gpus.id = gpu_quarters.owner"
    op.execute(f"UPDATE gpu_quarters SET currency = ({of_gpu}) WHERE cost IS NOT NULL")  # noqa: S608 — a constant
    op.drop_column("gpus", "currency")


def downgrade() -> None:
    """Move it back; of several the last in the alphabet stays."""
    op.add_column("gpus", sa.Column("currency", sa.Text()))
    of_quarters = "SELECT max(currency) FROM gpu_quarters WHERE gpu_quarters.owner = gpus.id"
    op.execute(f"UPDATE gpus SET currency = ({of_quarters})")  # noqa: S608 — a constant
    op.drop_column("gpu_quarters", "currency")
