"""What a run must say of its job when it asks for a batch size, and when that is another job than the one known."""

from collections.abc import Sequence
from typing import Final

from policies.service.errors import JobMismatchError, RequestError
from policies.service.records import Job
from publishers.topics import is_name

MAX_CANDIDATES: Final = 256
MAX_BATCH_SIZE: Final = 1 << 31
_SHOWN: Final = 8


def new_job(name: str, *, batch_sizes: Sequence[int], default_batch_size: int, now_s: float) -> Job:
    """Return the job as a run describes it, its batch sizes sorted.

    Raises:
        RequestError: there are no batch sizes, or too many, or some twice, or they are no such numbers; the default is
            not among them; the name is none. With every fault.
    """
    faults = [*name_faults("job", name), *_candidate_faults(batch_sizes, default_batch_size)]
    if faults:
        raise RequestError(faults)
    return Job(
        name=name,
        batch_sizes=tuple(sorted(batch_sizes)),
        default_batch_size=default_batch_size,
        created_at_s=now_s,
    )


def job_of_run(job: str, run: str, batch_sizes: Sequence[int], default_batch_size: int, now_s: float) -> Job:
    """Return the job as a run describes it.

    Raises:
        RequestError: one of the two cannot be; with every fault.
    """
    faults = name_faults("run", run)
    try:
        wanted = new_job(job, batch_sizes=batch_sizes, default_batch_size=default_batch_size, now_s=now_s)
    except RequestError as error:
        raise RequestError([*faults, *error.faults]) from None
    if faults:
        raise RequestError(faults)
    return wanted


def name_faults(what: str, name: str) -> list[str]:
    """Return what is wrong with the name of a job or a run: at most one sentence."""
    return [] if is_name(name) else [f"{what} = {name!r}: must be 1 to 64 characters of A-Z a-z 0-9 . _ -"]


def check_same(known: Job, wanted: Job) -> None:
    """Check that a run describes the job that is known under its name.

    Raises:
        JobMismatchError: it has other batch sizes, or another default.
    """
    if (known.batch_sizes, known.default_batch_size) != (wanted.batch_sizes, wanted.default_batch_size):
        raise JobMismatchError(
            f"job {known.name} has batch sizes {_shown(known.batch_sizes)} and default {known.default_batch_size}, "
            f"this run offers {_shown(wanted.batch_sizes)} and {wanted.default_batch_size}: give it another job name, "
            f"or forget what was learned (gridchase policy forget {known.name})"
        )


def _candidate_faults(batch_sizes: Sequence[int], default_batch_size: int) -> list[str]:
    sizes = list(batch_sizes)
    if not 1 <= len(sizes) <= MAX_CANDIDATES:
        return [f"batch_sizes has {len(sizes)} entries: must have 1 to {MAX_CANDIDATES}"]
    faults = []
    if wrong := [size for size in sizes if not _is_batch_size(size)]:
        faults.append(f"batch_sizes has {_shown(wrong)}: must be whole numbers from 1 to {MAX_BATCH_SIZE}")
    elif twice := sorted({size for size in sizes if sizes.count(size) > 1}):
        faults.append(f"batch_sizes has {_shown(twice)} more than once: must be distinct")
    if default_batch_size not in sizes:
        faults.append(f"default_batch_size = {default_batch_size}: must be one of {_shown(sizes)}")
    return faults


def _is_batch_size(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= MAX_BATCH_SIZE


def _shown(sizes: Sequence[int]) -> str:
    more = [f"… ({len(sizes)} in all)"] if len(sizes) > _SHOWN else []
    return ", ".join([*(str(size) for size in sizes[:_SHOWN]), *more])
