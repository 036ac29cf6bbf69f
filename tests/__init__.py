"""The tests mirror the source; fakes.py, scenarios/, live/ and benchmarks/ stand beside them."""
