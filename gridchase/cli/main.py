"""The verbs that need the base install alone, and what is said of the others where the controller is not installed.

Exit codes: 0 done, or stopped on request; 1 something is wrong; 2 the arguments are wrong, or the verb needs the
controller.
"""

import logging
import sys
from collections.abc import Sequence

from gridchase.cli.verb import command_line, take_any_text
from publishers.shared.log_lines import line_handler


def main(arguments: Sequence[str] | None = None, *, without_controller: str = "") -> int:
    """Run a verb of the base install and return its exit code.

    Args:
        arguments: the words of the command line; None: those of this process.
        without_controller: why the verbs of the controller cannot be used; "" where they can.

    Raises:
        SystemExit: the arguments ask for help or the version (0), are invalid, or name a verb of the controller (2).
    """
    take_any_text()
    options = command_line(without_controller=without_controller).parse_args(arguments)
    if options.log_level:
        logging.basicConfig(level=options.log_level.upper(), handlers=[line_handler(sys.stderr)])
    try:
        code: int = options.do(options)
    except KeyboardInterrupt:
        print("stopped on request", file=sys.stderr)
        return 0
    return code
