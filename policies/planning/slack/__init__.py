"""Slack, time beyond what work needs: of a run, for slower limits, pauses and an early end; of GPUs that wait."""
