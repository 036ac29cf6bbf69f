"""The tables of the history: runs, GPUs, what each used in each quarter-hour, changes of power limits, and the grid.

Times are Unix seconds. Quarter-hours lie in the order of their time, so those of now are side by side, and a period is
read in one go. A quarter-hour that was merged into a day has that day's length. There are no foreign keys: without an
index of their own, each check would read a whole table. A change here needs a migration in `migrations/versions`; a
test compares the two.
"""

from pathlib import Path
from typing import Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Double,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    case,
    func,
)

from controller.history.energy_history.growth import CURRENCY_SEPARATOR, GPU_AMOUNTS, RUN_AMOUNTS
from policies.database.migration import Migrations

MIGRATIONS: Final = Migrations(
    scripts=Path(__file__).parent / "migrations", lock=0x6869_7374_6F72_7921, version_table="history_version"
)
"""The lock's key is the bytes of "history!"."""
METADATA: Final = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

RUNS: Final = Table(
    "runs",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("username", String(128), key="user", nullable=False),
    Column("job", String(64), nullable=False),
    Column("run", String(64), nullable=False),
    Column("node", String(64), nullable=False),  # "": the whole run, on all its nodes
    Column("began_s", Double, nullable=False),
    Column("heard_s", Double, nullable=False),
    Column("state", String(16), nullable=False),
    Column("final", Boolean(create_constraint=False), nullable=False),
    Column("record", Text, nullable=False),  # the newest record as it was published, JSON
    Column("earlier", JSON, nullable=False),
    *(Column(name, Double) for name in RUN_AMOUNTS),
    Column("currency", Text),
    UniqueConstraint("user", "job", "run", "node"),
    Index("ix_runs_run", "run"),
    Index("ix_runs_heard_s", "heard_s"),
)

RUN_QUARTERS: Final = Table(
    "run_quarters",
    METADATA,
    Column("starts_s", BigInteger, primary_key=True, autoincrement=False),
    Column("owner", Integer, primary_key=True, autoincrement=False),
    Column("length_s", Integer, nullable=False),
    *(Column(name, Double) for name in RUN_AMOUNTS),
    sqlite_with_rowid=False,
)

GPUS: Final = Table(
    "gpus",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("node", String(64), nullable=False),
    Column("gpu_uuid", String(64), nullable=False),
    Column("gpu_index", Integer),
    Column("session_s", Double),  # when the controller started whose counters these are
    *(Column(name, Double) for name in GPU_AMOUNTS),
    Column("heard_s", Double),  # the time of the newest counters
    UniqueConstraint("node", "gpu_uuid"),
)

GPU_QUARTERS: Final = Table(
    "gpu_quarters",
    METADATA,
    Column("starts_s", BigInteger, primary_key=True, autoincrement=False),
    Column("owner", Integer, primary_key=True, autoincrement=False),
    Column("length_s", Integer, nullable=False),
    *(Column(name, Double) for name in GPU_AMOUNTS),
    Column("currency", Text),  # of the cost
    sqlite_with_rowid=False,
)

DECISIONS: Final = Table(
    "decisions",
    METADATA,
    Column("time_s", Double, primary_key=True),
    Column("gpu", Integer, primary_key=True, autoincrement=False),
    Column("reason", String(64), nullable=False),
    Column("detail", Text, nullable=False),
    Column("job", String(64)),
    Column("signal", Text),
    Column("power_limit_w", Double),
    Column("requested_power_limit_w", Double),
    Column("enforced_power_limit_w", Double),
    Column("previous_power_limit_w", Double),
    Column("speed_ratio", Double),
    sqlite_with_rowid=False,
)

GRID_QUARTERS: Final = Table(
    "grid_quarters",
    METADATA,
    Column("starts_s", BigInteger, primary_key=True, autoincrement=False),
    Column("zone", String(64), primary_key=True),
    Column("kind", String(16), primary_key=True),
    Column("value", Double, nullable=False),  # the newest that was in force in that quarter-hour
    Column("unit", Text, nullable=False),
    Column("source", Text, nullable=False),
    sqlite_with_rowid=False,
)


def joint_currency() -> ColumnElement[str | None]:
    """Return the currency of a group of quarter-hours of a GPU: the separator alone where they have several."""
    least, greatest = (choose(GPU_QUARTERS.c.currency) for choose in (func.min, func.max))
    return case((least.is_(None), None), (least == greatest, least), else_=CURRENCY_SEPARATOR)
