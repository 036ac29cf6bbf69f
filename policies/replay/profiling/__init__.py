"""Profilers replayed on measured curves, under noise."""
