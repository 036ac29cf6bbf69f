"""What tells that a step has ended: the hook of an optimizer, or the output that is waited for."""
