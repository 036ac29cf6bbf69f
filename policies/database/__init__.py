"""SQL databases, SQLite or PostgreSQL, and their migrations: for the policy service and for the history."""
