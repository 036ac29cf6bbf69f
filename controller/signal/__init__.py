"""The grid signal of this node: polls providers, stores their histories, and selects the best available signal."""
