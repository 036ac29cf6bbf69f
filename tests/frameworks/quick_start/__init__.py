"""What is on `PYTHONPATH` of every training that a test starts."""
