"""Pauses and early stops: a training waits, or ends its loop, between two iterations; all ranks after the same one."""
