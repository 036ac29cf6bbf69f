"""Units, signals, power profiles and what is computed from them alone: the terms of every policy."""
