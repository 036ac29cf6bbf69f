"""Profiler and planner on traces: what they spend and save on measured curves, beside what others would."""
