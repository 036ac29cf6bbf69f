"""Runs: routing messages to them, their life cycle, GPU claims and checkpoints."""
