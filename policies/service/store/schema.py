"""The tables of the policy service: jobs, their trials, and who answers which request.

Times are Unix seconds, measurements are what was told (what a run has timed: JSON, which is read as a whole): nothing
that is computed from them is stored. A job's name is
its key, and a trial's key is its number in the job: in SQLite, whose tables without row ids are kept in the order of
their keys, the trials of one job lie side by side, and reading them all is one short walk.

A change here needs a migration beside those of `migrations/versions`; a test compares the two.
"""

from typing import Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

METADATA: Final = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)
"""Constraints have names, so that later migrations can speak of them."""

JOBS: Final = Table(
    "jobs",
    METADATA,
    Column("name", String(64), primary_key=True),
    Column("batch_sizes", JSON, nullable=False),
    Column("default_batch_size", BigInteger, nullable=False),
    Column("created_at_s", Double, nullable=False),
    Column("policy", String(64)),
    Column("eta", Double),
    Column("beta", Double),
    Column("forgetting_ratio", Double),
    sqlite_with_rowid=False,
)

TRIALS: Final = Table(
    "trials",
    METADATA,
    Column("job", String(64), ForeignKey("jobs.name", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("run", String(64), nullable=False),
    Column("recurrence", BigInteger, nullable=False),
    Column("batch_size", BigInteger, nullable=False),
    Column("state", String(16), nullable=False),
    Column("requested_at_s", Double, nullable=False),
    Column("heard_at_s", Double, nullable=False),
    Column("lease_s", Double, nullable=False),
    Column("cost_bound", Double),
    Column("bound_eta", Double),
    Column("bound_gpu_model", Text),
    Column("bound_n_gpus", BigInteger),
    Column("ended_at_s", Double),
    Column("stop_ordered_at_s", Double),
    Column("last_epoch", BigInteger),
    Column("last_metric", Double),
    Column("has_lost_count", Boolean(create_constraint=False), nullable=False, server_default=false()),
    Column("outcome", String(16)),
    Column("epochs", BigInteger),
    Column("reached_epochs", BigInteger),
    Column("energy_j", Double),
    Column("duration_s", Double),
    Column("max_power_w", Double),
    Column("gpu_model", Text),
    Column("n_gpus", BigInteger),
    Column("carbon_g", Double),
    Column("money", Double),
    Column("currency", Text),
    Column("reason", String(64), nullable=False),
    Column("detail", Text, nullable=False),
    Column("failure", Text),
    Column("untimed", Text),
    Column("timing", Text),
    UniqueConstraint("job", "run"),
    # A trial whose end is still to come has none: the few of them are found without looking at the rest.
    Index(
        "ix_trials_in_flight",
        "job",
        "heard_at_s",
        sqlite_where=text("ended_at_s IS NULL"),
        postgresql_where=text("ended_at_s IS NULL"),
    ),
    # A study needs those two however old they are.
    Index(
        "ix_trials_failed",
        *("job", "batch_size", "number"),
        sqlite_where=text("state = 'failed'"),
        postgresql_where=text("state = 'failed'"),
    ),
    Index(
        "ix_trials_timed",
        *("job", "requested_at_s"),
        sqlite_where=text("timing IS NOT NULL"),
        postgresql_where=text("timing IS NOT NULL"),
    ),
    # The lost ones are few, too; the list of jobs counts them.
    Index(
        "ix_trials_lost",
        "job",
        sqlite_where=text("state = 'lost'"),
        postgresql_where=text("state = 'lost'"),
    ),
    sqlite_with_rowid=False,
)

CLAIMS: Final = Table(
    "claims",
    METADATA,
    Column("correlation", Text, primary_key=True),
    Column("claimed_at_s", Double, nullable=False, index=True),
    sqlite_with_rowid=False,
)
