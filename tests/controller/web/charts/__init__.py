"""Tests of charts and of the pages that hold them."""
