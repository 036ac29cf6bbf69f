"""What this node remembers of the runs that it has led, and what follows from it."""
