"""The policy service: which batch size a job's next run should use, learned from run to run. It is its own process."""
