"""The first tables: jobs, trials, claims."""

import sqlalchemy as sa
from alembic import op

revision = "0004"  # 0001 to 0003 were those of clones before the first release
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    _create_jobs()
    _create_trials()
    op.create_table(
        "claims",
        sa.Column("correlation", sa.Text(), nullable=False),
        sa.Column("claimed_at_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("correlation", name="pk_claims"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_claims_claimed_at_s", "claims", ["claimed_at_s"])


def downgrade() -> None:
    """Drop the tables with all they hold."""
    for table in ("claims", "trials", "jobs"):
        op.drop_table(table)


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("batch_sizes", sa.JSON(), nullable=False),
        sa.Column("default_batch_size", sa.BigInteger(), nullable=False),
        sa.Column("created_at_s", sa.Double(), nullable=False),
        sa.Column("policy", sa.String(64)),
        sa.Column("eta", sa.Double()),
        sa.Column("beta", sa.Double()),
        sa.Column("forgetting_ratio", sa.Double()),
        sa.PrimaryKeyConstraint("name", name="pk_jobs"),
        sqlite_with_rowid=False,
    )


def _create_trials() -> None:
    op.create_table(
        "trials",
        sa.Column("job", sa.String(64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("run", sa.String(64), nullable=False),
        sa.Column("recurrence", sa.BigInteger(), nullable=False),
        sa.Column("batch_size", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("requested_at_s", sa.Double(), nullable=False),
        sa.Column("heard_at_s", sa.Double(), nullable=False),
        sa.Column("lease_s", sa.Double(), nullable=False),
        sa.Column("cost_bound", sa.Double()),
        sa.Column("bound_eta", sa.Double()),
        sa.Column("bound_gpu_model", sa.Text()),
        sa.Column("bound_n_gpus", sa.BigInteger()),
        sa.Column("ended_at_s", sa.Double()),
        sa.Column("stop_ordered_at_s", sa.Double()),
        sa.Column("last_epoch", sa.BigInteger()),
        sa.Column("last_metric", sa.Double()),
        sa.Column("has_lost_count", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("outcome", sa.String(16)),
        sa.Column("epochs", sa.BigInteger()),
        sa.Column("reached_epochs", sa.BigInteger()),
        sa.Column("energy_j", sa.Double()),
        sa.Column("duration_s", sa.Double()),
        sa.Column("max_power_w", sa.Double()),
        sa.Column("gpu_model", sa.Text()),
        sa.Column("n_gpus", sa.BigInteger()),
        sa.Column("carbon_g", sa.Double()),
        sa.Column("money", sa.Double()),
        sa.Column("currency", sa.Text()),
        sa.Column("reason", sa.String(64), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("failure", sa.Text()),
        sa.Column("untimed", sa.Text()),
        sa.Column("timing", sa.Text()),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name="fk_trials_job", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job", "number", name="pk_trials"),
        sa.UniqueConstraint("job", "run", name="uq_trials_job_run"),
        sqlite_with_rowid=False,
    )
    _create_index("in_flight", ["job", "heard_at_s"], where="ended_at_s IS NULL")
    _create_index("failed", ["job", "batch_size", "number"], where="state = 'failed'")
    _create_index("timed", ["job", "requested_at_s"], where="timing IS NOT NULL")
    _create_index("lost", ["job"], where="state = 'lost'")


def _create_index(name: str, columns: list[str], *, where: str) -> None:
    op.create_index(
        f"ix_trials_{name}", "trials", columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where)
    )
