"""How many runs and ranks one user and one job may have on a node; `mqtt.receiving.quotas` bounds their messages.

Whoever takes too much is refused; nobody else is refused or evicted for it.
"""

from collections.abc import Collection
from typing import Final

from publishers.messages.topics import RunKey

MAX_RUNS: Final = 256
"""More runs than this at a time on one node is a flood, not a workload."""
MAX_RUNS_OF_JOB: Final = 32
MAX_RUNS_OF_USER: Final = 64
RESERVED_RUNS: Final = 64
"""So many places are kept for users who have few runs: some users who flood the node together leave these."""
FEW_RUNS: Final = 8
MAX_RANKS: Final = 1_024
"""Of all runs of one user."""


def run_fault(runs: Collection[RunKey], new: RunKey) -> str | None:
    """Return why a run may not start beside others, in a sentence; None where it may."""
    n_of_user = sum(run.user == new.user for run in runs)
    n_of_job = sum(run[:2] == new[:2] for run in runs)
    if n_of_job >= MAX_RUNS_OF_JOB:
        return f"{n_of_job} runs of job {new.job} on this node: at most {MAX_RUNS_OF_JOB} at a time"
    if n_of_user >= MAX_RUNS_OF_USER:
        return f"{n_of_user} runs of user {new.user} on this node: at most {MAX_RUNS_OF_USER} at a time"
    if len(runs) >= MAX_RUNS or (len(runs) >= MAX_RUNS - RESERVED_RUNS and n_of_user >= FEW_RUNS):
        return f"{len(runs)} runs on this node, {n_of_user} of them of user {new.user}: the node is full"
    return None
