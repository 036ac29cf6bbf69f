"""What may be wrong with a database. Each message gives the value and what to do."""


class DatabaseUrlError(ValueError):
    """The URL is none that can be used here."""


class DatabaseUnavailableError(OSError):
    """The file of an SQLite database cannot be made."""


class DatabaseVersionError(Exception):
    """The database has the schema of another version: this one must not touch it."""
