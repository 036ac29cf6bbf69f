"""The terms of every policy: units, signals, power profiles, and computations on them alone."""
