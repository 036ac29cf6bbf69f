"""Publishes a loop of so many iterations, without PyTorch, whose import takes longer than all else: `plain.py N`."""

import sys
import time

from gridchase import publish_iterations

for _ in publish_iterations(range(int(sys.argv[1])), flush_s=0.05):
    time.sleep(0.005)
