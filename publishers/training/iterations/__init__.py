"""Counting iterations: what tells them, the buffer they are recorded in, and the data loader that is told about."""
