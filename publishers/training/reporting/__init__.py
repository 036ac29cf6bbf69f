"""What a run says of itself to its own training: the summary, live values, trackers, an emissions file."""
