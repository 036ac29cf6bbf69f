"""The tables of the policy service: jobs, their trials, and who answers which request.

Times are Unix seconds. Only what was reported is stored, nothing that is computed from it. A job's key is its user and
its name, and a trial's is its number in the job: SQLite keeps tables without row ids in the order of their keys, so the
trials of one job lie side by side.

A change here needs a migration in `migrations/versions`; a test compares the two.
"""

from pathlib import Path
from typing import Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKeyConstraint,
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

from policies.database.migration import Migrations

MIGRATIONS: Final = Migrations(scripts=Path(__file__).parent / "migrations", lock=0x6772_6964_6368_6173)
"""The lock's key is the bytes of "gridchas"."""
METADATA: Final = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)
"""Constraints have names, so that later migrations can refer to them."""


def _index(name: str, *columns: str, where: str) -> Index:
    return Index(f"ix_trials_{name}", *columns, sqlite_where=text(where), postgresql_where=text(where))


def _user() -> Column[str]:
    """Return the column of the user whose a job is; in SQL, `user` without quotes is the user of the database."""
    return Column("username", String(128), key="user", primary_key=True)


JOBS: Final = Table(
    "jobs",
    METADATA,
    _user(),
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
    _user(),
    Column("job", String(64), primary_key=True),
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
    ForeignKeyConstraint(["user", "job"], ["jobs.user", "jobs.name"], ondelete="CASCADE"),
    UniqueConstraint("user", "job", "run"),
    # A trial whose end is still to come has none: the few of them are found without looking at the rest.
    _index("in_flight", "user", "job", "heard_at_s", where="ended_at_s IS NULL"),
    # A study needs those two however old they are.
    _index("failed", "user", "job", "batch_size", "number", where="state = 'failed'"),
    _index("timed", "user", "job", "requested_at_s", where="timing IS NOT NULL"),
    # The lost ones are few, too; the list of jobs counts them.
    _index("lost", "user", "job", where="state = 'lost'"),
    sqlite_with_rowid=False,
)

CLAIMS: Final = Table(
    "claims",
    METADATA,
    Column("correlation", Text, primary_key=True),
    Column("claimed_at_s", Double, nullable=False, index=True),
    sqlite_with_rowid=False,
)
