"""Migrations of the policy service's database; Alembic runs those that are missing."""
