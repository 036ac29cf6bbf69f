"""Tests: publishers."""
