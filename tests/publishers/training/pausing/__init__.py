"""Tests: pauses and early stops of a training."""
