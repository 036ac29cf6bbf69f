"""Tests of how iterations are counted."""
