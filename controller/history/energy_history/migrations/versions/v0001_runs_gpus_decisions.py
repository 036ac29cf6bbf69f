"""The first tables: runs, GPUs, their quarter-hours, decisions."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_USED = ("duration_s", "energy_j", "carbon_g", "cost")
_RUN_AMOUNTS = (*_USED, *(f"compared_{name}" for name in _USED), *(f"baseline_{name}" for name in _USED))
_GPU_AMOUNTS = ("energy_j", "carbon_g", "cost")


def upgrade() -> None:
    """Create the tables."""
    _create_runs()
    _create_gpus()
    _create_quarters("run", _RUN_AMOUNTS)
    _create_quarters("gpu", _GPU_AMOUNTS)
    op.create_table(
        "decisions",
        sa.Column("time_s", sa.Double(), nullable=False),
        sa.Column("gpu", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("reason", sa.String(64), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("job", sa.String(64)),
        sa.Column("signal", sa.Text()),
        sa.Column("power_limit_w", sa.Double()),
        sa.Column("requested_power_limit_w", sa.Double()),
        sa.Column("enforced_power_limit_w", sa.Double()),
        sa.Column("previous_power_limit_w", sa.Double()),
        sa.PrimaryKeyConstraint("time_s", "gpu", name="pk_decisions"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    """Drop the tables with all they hold."""
    for table in ("decisions", "gpu_quarters", "run_quarters", "gpus", "runs"):
        op.drop_table(table)


def _create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("username", sa.String(128), nullable=False),
        sa.Column("job", sa.String(64), nullable=False),
        sa.Column("run", sa.String(64), nullable=False),
        sa.Column("node", sa.String(64), nullable=False),
        sa.Column("began_s", sa.Double(), nullable=False),
        sa.Column("heard_s", sa.Double(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("final", sa.Boolean(create_constraint=False), nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        sa.Column("earlier", sa.JSON(), nullable=False),
        *(sa.Column(name, sa.Double()) for name in _RUN_AMOUNTS),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sa.UniqueConstraint("username", "job", "run", "node", name="uq_runs_username_job_run_node"),
    )
    op.create_index("ix_runs_run", "runs", ["run"])
    op.create_index("ix_runs_heard_s", "runs", ["heard_s"])


def _create_gpus() -> None:
    op.create_table(
        "gpus",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("node", sa.String(64), nullable=False),
        sa.Column("gpu_uuid", sa.String(64), nullable=False),
        sa.Column("gpu_index", sa.Integer()),
        sa.Column("session_s", sa.Double()),
        *(sa.Column(name, sa.Double()) for name in _GPU_AMOUNTS),
        sa.Column("currency", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_gpus"),
        sa.UniqueConstraint("node", "gpu_uuid", name="uq_gpus_node_gpu_uuid"),
    )


def _create_quarters(owner: str, amounts: tuple[str, ...]) -> None:
    op.create_table(
        f"{owner}_quarters",
        sa.Column("starts_s", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("owner", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("length_s", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.Double()) for name in amounts),
        sa.PrimaryKeyConstraint("starts_s", "owner", name=f"pk_{owner}_quarters"),
        sqlite_with_rowid=False,
    )
