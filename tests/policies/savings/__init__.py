"""Tests of what a run has saved."""
