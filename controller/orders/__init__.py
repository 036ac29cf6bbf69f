"""What people order of the runs of this node: pauses, and pinned limits."""
