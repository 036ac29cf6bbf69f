"""What launchers and schedulers say in the environment of a training process: its rank, an id of the launch, its time.

| launcher | rank and world size | the same on all ranks, and new with each launch |
|---|---|---|
| torchrun | `RANK`, `WORLD_SIZE` | `TORCHELASTIC_RUN_ID`, where torchrun has made it: a UUID |
| srun | `SLURM_PROCID`, `SLURM_NTASKS` | `SLURM_JOB_ID` and `SLURM_STEP_ID` |
| Open MPI's mpirun | `OMPI_COMM_WORLD_RANK`, `…_SIZE` | `PMIX_NAMESPACE` and the start of the parent process |
| MPICH's mpiexec | `PMI_RANK`, `PMI_SIZE` | the parent process and its start, on one node |

A variable may have been inherited: from a batch script, a shell in an allocation, a process that was launched itself.
"""

import os
import re
import sys
from collections.abc import Mapping
from typing import Final, NamedTuple

from publishers.training.coerce import to_float, to_int
from publishers.training.run.interactive_shell import PROC, is_typed_in_step, stat_fields

MAX_TIME_LIMIT_S: Final = 10 * 366 * 86_400.0
"""A job without a time limit has an end that is further away than this, or none at all."""
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_FIRST_RESERVED_STEP: Final = 4_294_967_290
"""From here on steps are none of srun's: an interactive shell (…290), a batch script (…291), what has joined a job."""
LAUNCH: Final = "GRIDCHASE_LAUNCH"
"""`gridchase run` sets it, below which processes that share a GPU are one training."""
_DIGITS: Final = 12
_IMPORTED_BY: Final = os.getpid()
_START_FIELD: Final = 19
"""Of `/proc/<pid>/stat`, after the name of the command: when the process was started, in ticks since the boot."""


class Launcher(NamedTuple):
    """The variables in which a launcher says who a process is among those that it has launched."""

    rank: str
    world_size: str
    local_rank: str
    local_size: str


_TORCHRUN: Final = Launcher("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""Others set these, too, some of them only a part, and so do the scripts of users."""
_SRUN: Final = Launcher("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE")
_MPIS: Final = (
    Launcher(
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"
    ),
    Launcher("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


def launchers_of(environ: Mapping[str, str]) -> tuple[Launcher, ...]:
    """Return the launchers whose variables say who this process is; of each variable the first that is set counts."""
    srun = (_SRUN,) if is_slurm_step(environ) else ()
    return (_TORCHRUN, *srun, *(mpi for mpi in _MPIS if environ.get(mpi.rank) and environ.get(mpi.world_size)))


def world_size_of(environ: Mapping[str, str]) -> int:
    """Return how many processes were launched together, as far as the environment tells."""
    sizes = (to_int(environ.get(launcher.world_size)) for launcher in launchers_of(environ))
    return next((size for size in sizes if size is not None and size > 0), 1)


def is_slurm_step(environ: Mapping[str, str]) -> bool:
    """Return whether srun has started this process, or one above it that is no interactive shell.

    A batch script has a rank and a number of tasks, too, and so has a shell in an allocation: they mean nothing there.
    """
    step = environ.get("SLURM_STEP_ID", "")
    number = to_int(step)
    is_step = number is not None and 0 <= number < _FIRST_RESERVED_STEP
    return is_step and not is_typed_in_step(environ.get("SLURM_JOB_ID", ""), step)


def torchrun_uuid(environ: Mapping[str, str]) -> str | None:
    """Return the id that torchrun has made for this launch; it stays the same where torchrun restarts the ranks.

    One that the user has chosen is none: commands are copied, and repeated.
    """
    run = environ.get("TORCHELASTIC_RUN_ID", "")
    return run if _UUID.match(run) else None


def torchrun_id(environ: Mapping[str, str]) -> str | None:
    """Return the id of torchrun's rendezvous, whoever has chosen it."""
    run = environ.get("TORCHELASTIC_RUN_ID")
    return run if run and run != "none" else None


def launch_id(environ: Mapping[str, str]) -> str | None:
    """Return what is the same on all ranks of a launch, and new with each, without asking anybody; None: nothing is."""
    if is_slurm_step(environ) and environ.get("SLURM_JOB_ID"):
        return f"{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}"
    namespace = environ.get("PMIX_NAMESPACE")
    is_local = _is_on_one_node(environ)
    if namespace:  # on several nodes the ranks have several parents
        return _digest(namespace, parent_start() or "") if is_local else _digest(namespace)
    start = parent_start()
    return _digest(os.uname().nodename, str(os.getppid()), start) if is_local and start else None


def parent_start() -> str | None:
    """Return when the parent process was started, in ticks since the boot; None where the system does not say."""
    fields = stat_fields(PROC / str(os.getppid()))
    return fields[_START_FIELD] if len(fields) > _START_FIELD else None


def is_child() -> bool:
    """Return whether this process was forked, or started by `multiprocessing`: its variables are its parent's."""
    process = sys.modules.get("multiprocessing.process")
    return os.getpid() != _IMPORTED_BY or (process is not None and process.parent_process() is not None)


def time_limit_s(environ: Mapping[str, str], *, now_s: float) -> float | None:
    """Return when the scheduler ends this job at the latest [Unix s]; None where it does not say, or has no limit."""
    end_s = to_float(environ.get("SLURM_JOB_END_TIME"))
    return end_s if end_s is not None and now_s < end_s < now_s + MAX_TIME_LIMIT_S else None


def _is_on_one_node(environ: Mapping[str, str]) -> bool:
    """Return whether a launcher says that all ranks are on this node, as children of one process."""
    launchers = [launcher for launcher in launchers_of(environ) if launcher is not _SRUN]
    sizes = [(to_int(environ.get(each.world_size)), to_int(environ.get(each.local_size))) for each in launchers]
    return any(size is not None and size == local_size for size, local_size in sizes)


def _digest(*parts: str) -> str:
    import hashlib  # noqa: PLC0415 — loads OpenSSL; where a run publishes, its MQTT client has done so

    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:_DIGITS]
