"""The console script `gridchase`, and `python -m controller`."""

import sys

from controller.cli.parser import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
