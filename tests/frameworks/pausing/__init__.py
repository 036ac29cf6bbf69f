"""Pauses and early stops of real trainings: all ranks after the same step, without a deadlock."""
