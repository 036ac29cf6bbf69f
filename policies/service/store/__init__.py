"""The database of the policy service: SQLite or PostgreSQL, behind one store."""
