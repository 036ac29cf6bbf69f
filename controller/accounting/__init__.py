"""Accounting."""
