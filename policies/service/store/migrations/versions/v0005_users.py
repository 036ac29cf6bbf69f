"""A job is one user's: the user becomes part of the keys. Jobs of before belong to nobody (""), so to no other user."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_INDICES = {
    "in_flight": (["job", "heard_at_s"], "ended_at_s IS NULL"),
    "failed": (["job", "batch_size", "number"], "state = 'failed'"),
    "timed": (["job", "requested_at_s"], "timing IS NOT NULL"),
    "lost": (["job"], "state = 'lost'"),
}
_AS_BEFORE = {"sqlite_with_rowid": False}
"""SQLite copies the table; reflection does not tell that it has no row ids."""


def upgrade() -> None:
    """Put the user before the name of the job in every key."""
    _drop_indices()
    with op.batch_alter_table("trials") as trials:
        trials.drop_constraint("fk_trials_job", type_="foreignkey")
    _add_user("jobs", "name")
    _add_user("trials", "job", "number", unique=("job", "run"))
    with op.batch_alter_table("trials", table_kwargs=_AS_BEFORE) as trials:
        trials.create_foreign_key(
            "fk_trials_username", "jobs", ["username", "job"], ["username", "name"], ondelete="CASCADE"
        )
    for name, (columns, where) in _INDICES.items():
        _create_index(name, ["username", *columns], where)


def downgrade() -> None:
    """Refuse: two users' jobs of one name would be one."""
    raise NotImplementedError("jobs of several users cannot be told apart without their users")


def _add_user(table: str, *key: str, unique: tuple[str, ...] = ()) -> None:
    with op.batch_alter_table(table, table_kwargs=_AS_BEFORE) as changed:
        changed.add_column(sa.Column("username", sa.String(128), nullable=False, server_default=""))
        if unique:
            changed.drop_constraint(f"uq_{table}_{'_'.join(unique)}", type_="unique")
            changed.create_unique_constraint(f"uq_{table}_username_{'_'.join(unique)}", ["username", *unique])
        changed.drop_constraint(f"pk_{table}", type_="primary")
        changed.create_primary_key(f"pk_{table}", ["username", *key])
    with op.batch_alter_table(table, table_kwargs=_AS_BEFORE) as changed:
        changed.alter_column("username", server_default=None)


def _drop_indices() -> None:
    for name in _INDICES:
        op.drop_index(f"ix_trials_{name}", "trials")


def _create_index(name: str, columns: list[str], where: str) -> None:
    op.create_index(
        f"ix_trials_{name}", "trials", columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where)
    )
