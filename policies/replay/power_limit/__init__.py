"""Power limit policies replayed on measured curves and grid signals."""
