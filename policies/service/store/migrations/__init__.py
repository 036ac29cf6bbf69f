"""How the database of the policy service came to be as it is, step by step; Alembic runs what is missing."""
