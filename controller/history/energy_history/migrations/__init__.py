"""The migrations of the history."""
