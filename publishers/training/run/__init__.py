"""Which run this process trains in, which of its ranks it is, and when the run has ended."""
