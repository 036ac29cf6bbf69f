"""Small parts that several packages need."""
