"""Slack, the time that a run has beyond its work: limits below the energy-minimal one, pauses, and an early end."""
