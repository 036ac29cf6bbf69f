"""Recurrences."""
