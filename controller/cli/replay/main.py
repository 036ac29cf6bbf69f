"""`gridchase replay`: evaluates policies on files, without a controller.

gridchase replay forecast [--signal FILE…] [--json]
gridchase replay batch-size [--train FILE --power FILE…] [--eta 0.5] [--seeds 20] [--json]
gridchase replay plan [--power FILE --workload DATASET/NETWORK --batch-size N] [--signal FILE…] [--json]
gridchase replay profile [--power FILE…] [--noise realistic] [--eta 0.5] [--seeds 5] [--json]

Without files each uses included ones.
"""

import argparse

from controller.cli.replay import batch_size, forecast, plan, profile


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add what can be replayed."""
    parts = verb.add_subparsers(title="what", required=True, metavar="WHAT", parser_class=argparse.ArgumentParser)
    for module in (forecast, batch_size, plan, profile):
        module.add_part(parts)
