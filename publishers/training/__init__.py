"""The training side: publishes iterations, and asks the policy service for a batch size."""
