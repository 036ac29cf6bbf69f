"""How much work runs have done, where their trainings tell it, and what they used for it."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_TABLES = ("runs", "run_quarters")
_COLUMNS = ("work", "worked_energy_j")


def upgrade() -> None:
    """Add the columns; of what was written before, the work is not known."""
    for table in _TABLES:
        for column in _COLUMNS:
            op.add_column(table, sa.Column(column, sa.Double()))


def downgrade() -> None:
    """Drop them."""
    for table in _TABLES:
        for column in _COLUMNS:
            op.drop_column(table, column)
