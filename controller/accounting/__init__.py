"""Accounting: iterations, ranks and the energy account of a run, and the reports published about it."""
