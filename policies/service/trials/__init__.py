"""Trials: their life cycle, what is learned from them, and their repository."""
