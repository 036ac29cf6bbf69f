"""Alembic's entry point for migrations: they run on the caller's connection, in its transaction."""

from alembic import context

from policies.service.store.schema import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    # Alembic would not trust SQLite with it; with the `BEGIN IMMEDIATE` of `sqlite.py` its DDL is transactional.
    transactional_ddl=True,
    # SQLite can alter little; Alembic copies the table instead.
    render_as_batch=True,
)
context.run_migrations()
