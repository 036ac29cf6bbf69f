"""Alembic's entry point for migrations: they run on the caller's connection, in its transaction."""

from alembic import context

from controller.history.energy_history.schema import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table=context.config.attributes["version_table"],
    transactional_ddl=True,  # SQLite's transaction begins explicitly, so that its DDL is in it
    render_as_batch=True,
)
context.run_migrations()
