"""How a board warms, what that costs for the same work, and what a look at the top limit has not seen of it."""
