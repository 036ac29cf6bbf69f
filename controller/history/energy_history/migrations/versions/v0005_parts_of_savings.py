"""What a saving is made of: a better limit, following the grid, and measuring."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_TABLES = ("runs", "run_quarters")
_COLUMNS = [f"{part}_{unit}" for unit in ("carbon_g", "cost") for part in ("better_limit", "following", "measuring")]


def upgrade() -> None:
    """Add the columns; what was written before is not known to be made of anything."""
    for table in _TABLES:
        for column in _COLUMNS:
            op.add_column(table, sa.Column(column, sa.Double()))


def downgrade() -> None:
    """Drop them."""
    for table in _TABLES:
        for column in _COLUMNS:
            op.drop_column(table, column)
