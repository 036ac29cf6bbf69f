"""`gridchase demo`: a day, or with --recurrences a recurring job."""

import argparse
from pathlib import Path
from typing import Any, Final

from controller.demo.day.demo import DemoOptions, main_demo
from controller.demo.day.grid import list_zones
from controller.demo.recurrences.jobs import list_jobs
from controller.errors import ConfigError
from controller.web.config import WebSettings

_OPTIONS: Final = {"web_port": "web"}


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    verb.add_argument(
        "--seed", type=int, default=1, help="the seed of the noise, or of the drawn runs (default: %(default)s)"
    )
    verb.add_argument("--json", type=Path, metavar="FILE", help="write the result to this file")
    day = verb.add_argument_group("a day")
    day.add_argument("--duration-s", type=float, help="how long the demo takes [s] (default: 60)")
    day.add_argument("--zone", choices=list_zones(), help="the zone of the grid (default: GB)")
    day.add_argument("--max-slowdown", type=float, help="the allowed slowdown; 1.03 is 3 %% (default: 1.03)")
    port = WebSettings().port
    day.add_argument(
        "--web",
        dest="web_port",
        type=int,
        nargs="?",
        const=port,
        metavar="PORT",
        help=f"serve the page on this machine, until you stop the demo (default port: {port})",
    )
    recurring = verb.add_argument_group("a recurring job")
    recurring.add_argument("--recurrences", type=int, metavar="N", help="let a job recur this many times")
    recurring.add_argument(
        "--workload", metavar="JOB", help=f"the job: {', '.join(list_jobs())} (default: {list_jobs()[0]})"
    )
    recurring.add_argument(
        "--policy", choices=("gridchase", "zeus"), help="the policy that learns (default: gridchase)"
    )
    verb.set_defaults(outlives_terminal=True, default_log_level="warning", do=_demo)  # the demo prints its own progress


def _demo(options: argparse.Namespace) -> int:
    """Run one of the demos; options of the other one are faults."""
    of_day = {
        "duration_s": options.duration_s,
        "zone": options.zone,
        "max_slowdown": options.max_slowdown,
        "web_port": options.web_port,
    }
    of_job = {"n_recurrences": options.recurrences, "workload": options.workload, "policy": options.policy}
    if options.recurrences is None and (
        misplaced := [key for key in ("workload", "policy") if of_job[key] is not None]
    ):
        raise ConfigError([f"--{key}: goes with --recurrences, for a recurring job" for key in misplaced])
    is_recurring = options.recurrences is not None
    misplaced = [key for key, value in of_day.items() if value is not None] if is_recurring else []
    if misplaced:
        raise ConfigError(
            [
                f"--{_OPTIONS.get(key, key.replace('_', '-'))}: is for the day, not for a recurring job"
                for key in misplaced
            ]
        )
    given: dict[str, Any] = {"seed": options.seed, "json_path": options.json}
    given |= {key: value for key, value in (of_job if is_recurring else of_day).items() if value is not None}
    return _recur(given) if is_recurring else main_demo(DemoOptions(**given))


def _recur(given: dict[str, Any]) -> int:
    """Run the demo of a recurring job; only this one imports the policy service, which takes a second."""
    from controller.cli.policy.terminal import print_learned  # noqa: PLC0415
    from controller.demo.recurrences.demo import RecurrenceOptions, main_recurrences  # noqa: PLC0415

    return main_recurrences(RecurrenceOptions(**given), show_learned=print_learned)
