"""The grid signal of this node: providers polled, histories kept, and the best that is known."""
