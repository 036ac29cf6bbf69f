"""Replays of policies on measured traces: their costs and savings, compared with those of other policies."""
