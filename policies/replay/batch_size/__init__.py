"""Recurring jobs replayed on measured runs: what each policy of batch sizes would have spent."""
