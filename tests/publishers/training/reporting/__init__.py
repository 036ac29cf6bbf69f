"""Tests of what a run says of itself to its own training."""
