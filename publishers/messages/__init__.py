"""Messages."""
