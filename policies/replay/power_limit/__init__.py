"""Power limit."""
